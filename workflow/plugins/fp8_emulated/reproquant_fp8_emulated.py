"""A vLLM plugin for CPUs: FP8 activations quantized by torch, so that a W8A8 checkpoint loads and runs there.

    PYTHONPATH=workflow/plugins/fp8_emulated VLLM_PLUGINS=reproquant_fp8_emulated vllm serve CHECKPOINT

vLLM 0.32 on a CPU refuses a static FP8 checkpoint, because its own operation for quantizing activations
isn't built there with that signature. This replaces the operation by the same arithmetic in torch: true W8A8
results, emulated, and slow. It says whether a checkpoint loads and what it answers, and nothing about speed.
On a GPU it does nothing.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

FP8_MAX = 448.0
SMALLEST_AMAX = 1e-12


def register() -> None:
    """Called by vLLM in each of its processes (entry point ``vllm.general_plugins``)."""
    from vllm import _custom_ops
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _custom_ops.scaled_fp8_quant = scaled_fp8_quant
        print("FP8 W8A8 is emulated: activations are quantized by torch on this CPU", file=sys.stderr)


def scaled_fp8_quant(
    input: Tensor,
    scale: Tensor | None = None,
    num_token_padding: int | None = None,
    scale_ub: Tensor | None = None,
    use_per_token_if_dynamic: bool = False,
    output: Tensor | None = None,
    group_shape: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """The codes (float8_e4m3fn, like ``input``, [tokens, size]) and the scale to multiply them with.

    Static with one scale, dynamic with one for all tokens or for each. Raises
    NotImplementedError for padding, an upper bound and scales by group.
    """
    if num_token_padding or scale_ub is not None or (scale is not None and scale.numel() > 1):
        raise NotImplementedError("only one scale a tensor, or dynamic ones, are emulated")
    wide = input.float()
    if scale is None:
        magnitudes = wide.abs()
        largest = (
            magnitudes.amax(-1, keepdim=True) if use_per_token_if_dynamic else magnitudes.amax().reshape(1)
        )
        scale = largest.clamp(min=SMALLEST_AMAX) / FP8_MAX
    codes = (wide / scale).clamp(min=-FP8_MAX, max=FP8_MAX).to(torch.float8_e4m3fn)
    return (codes if output is None else output.copy_(codes)), scale
