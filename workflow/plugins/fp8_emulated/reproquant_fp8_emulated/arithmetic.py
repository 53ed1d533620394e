"""W8A8 without FP8 units: inputs are rounded to FP8, and codes are multiplied in the model's own dtype.

What an FP8 GPU would compute, with one rounding more: its tensor cores keep a sum of products in
float32 until it is scaled, and here a matrix product comes back in the model's dtype. The codes
themselves are exact in float16 and bfloat16. Weights stay FP8 in memory and are widened again in every
forward pass: that is the price of an FP8 checkpoint on such hardware. Needs torch alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

FP8_MAX = 448.0
SMALLEST_AMAX = 1e-12
SHIFT = 2.0**-8
"""What a widened code is multiplied with: exact for each, and 20,000 products can't overflow float16."""
NO_SECOND_BIT = ~0x4000


def merged(codes: Tensor, scales: Tensor, widths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Codes [out, in] of matrices that lie below each other, ``widths`` rows each, for one common scale.

    The scale is the largest; what had a smaller one is rounded again, by way of float16 as vLLM does it for
    its FP8 kernels (``requantize_with_max_scale``).
    """
    largest = scales.max()
    parts = [
        to_codes((part.half() * scale).float(), largest)
        for part, scale in zip(codes.split(list(widths)), scales, strict=True)
    ]
    return torch.cat(parts), largest


def linear(
    values: Tensor, codes: Tensor, scale: Tensor, input_scale: Tensor | None, bias: Tensor | None
) -> Tensor:
    """The outputs [..., out] of inputs [..., in]; without ``input_scale`` every token gets its own."""
    if input_scale is None:
        largest = values.abs().amax(-1, keepdim=True).float()
        input_scale = largest.clamp(min=SMALLEST_AMAX) / FP8_MAX
    seen = to_codes(values.float(), input_scale)
    product = functional.linear(widened(seen, values.dtype), widened(codes, values.dtype))
    outputs = product.float() * (input_scale * scale / SHIFT**2)
    return (outputs if bias is None else outputs + bias).to(values.dtype)


def to_codes(values: Tensor, scale: Tensor) -> Tensor:
    """float32 values as FP8 codes (e4m3fn) for a scale; what is too large is clamped."""
    return (values / scale).clamp(min=-FP8_MAX, max=FP8_MAX).to(torch.float8_e4m3fn)


def widened(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """FP8 codes times ``SHIFT`` in a wider dtype.

    A code's bits S EEEE MMM, put into float16 as S 0EEEE MMM0000000, are its value times 2^-8, because the
    exponents' biases are 7 and 15; that holds for subnormal codes too. The sign comes along by way of int8,
    twice, and the second is taken out. Ten times as fast as torch's own conversion on a CPU. The two codes
    that stand for NaN become numbers; no checkpoint and no clamped input has them.
    """
    bits = codes.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(NO_SECOND_BIT)
    return bits.view(torch.float16).to(dtype)
