"""Where the FP8 writer computes: a CPU's one core, or a CUDA device."""

from __future__ import annotations

import os

import torch

from reproquant.errors import ToolError


def prepared(name: str) -> torch.device:
    """The device ``cpu`` or ``cuda``, set up so that the same machine gives the same bits again.

    Raises ToolError if there is no CUDA device that this torch can use.
    """
    torch.set_num_threads(1)
    if name == "cuda":
        if not torch.cuda.is_available():
            raise ToolError(
                "fp8.device",
                f"torch {torch.__version__} finds no CUDA device here",
                "on a machine with an NVIDIA GPU, name an environment whose torch is a CUDA build under "
                "environments.fp8 (vLLM's is one); elsewhere set fp8.device: cpu",
            )
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return torch.device(name)


def described(device: torch.device) -> str:
    """The GPU's product name, or which instructions torch uses of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.backends.cpu.get_cpu_capability()}"
