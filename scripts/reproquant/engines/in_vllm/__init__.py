"""Programs for vLLM's own Python, in a folder of their own: it comes first where that looks for imports."""
