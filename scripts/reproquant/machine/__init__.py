"""What this machine is: its processors, its memory, its GPUs, and what of it may be told."""
