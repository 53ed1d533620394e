"""Per-tensor float8 e4m3 scales, by AutoFP8's formulas.

Source: github.com/neuralmagic/AutoFP8 at commit 505a7ed, auto_fp8/quantize.py.
All arithmetic stays in the dtype of the values; that, and the order of the
operations, is what makes codes and scales equal to AutoFP8's to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from reproquant.errors import FormatError

FP8_MAX = 448.0
SMALLEST_AMAX = 1e-12

Mode = Literal["autofp8", "corrected"]
Fusion = Literal["separate", "shared"]
Scheme = Literal["static", "dynamic"]


class Quantized(NamedTuple):
    """Codes (float8_e4m3fn, shape of the values) and the scale (float32, 0-dim) to multiply them with."""

    codes: Tensor
    scale: Tensor


def quantize(values: Tensor, where: str) -> Quantized:
    """The values as float8 with one scale: codes x scale is about the values.

    ``s = 448 * (1 / max(amax, 1e-12))``, ``codes = clamp(values * s, +-448)``,
    ``scale = 1 / float32(s)``. The reciprocal and ``s`` are each rounded to the
    values' dtype (bfloat16 or float32): torch divides a number by a tensor in
    these two steps. The clamp comes before the cast: a cast of 465 gives 448 in torch and NaN
    elsewhere. Raises FormatError that names ``where`` if a value is infinite
    or not a number.
    """
    smallest, largest = values.aminmax()
    amax = torch.maximum(smallest.abs(), largest.abs())
    if not torch.isfinite(amax):
        raise FormatError(
            where, f"it holds a value that is {amax.item()}", "check the checkpoint; it may be damaged"
        )
    inverse = amax.clamp(min=SMALLEST_AMAX).reciprocal() * FP8_MAX
    codes = (values * inverse).clamp_(min=-FP8_MAX, max=FP8_MAX).to(torch.float8_e4m3fn)
    return Quantized(codes, inverse.float().reciprocal())


def quantize_together(values: Sequence[Tensor], where: str) -> list[Quantized]:
    """Matrices with as many columns, quantized with one scale; refuses what ``quantize`` does."""
    codes, scale = quantize(torch.cat(list(values)), where)
    parts = codes.split([len(matrix) for matrix in values])
    return [Quantized(part.clone(), scale.clone()) for part in parts]


def dequantize_weight(weight: Quantized, dtype: torch.dtype) -> Tensor:
    """The weight that calibration computes with; the scale is rounded to ``dtype`` first."""
    return weight.codes.to(dtype) * weight.scale.to(dtype)


class InputObserver:
    """Watches one input of Linears, row by row: ``scale`` is the largest row's scale so far.

    Called with a row's input, it returns what the quantized Linear would see.
    AutoFP8 makes the codes with the row's own scale but multiplies them with
    the running maximum, so that every row but the largest so far comes out too
    large, in later layers the more so. ``autofp8`` repeats that; ``corrected``
    multiplies with the scale that made the codes.
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.scale: Tensor | None = None

    def __call__(self, values: Tensor, where: str) -> Tensor:
        codes, scale = quantize(values, where)
        if self.scale is None or scale > self.scale:
            self.scale = scale
        # float32 scale times narrower codes: not the same bits as with a rounded scale
        return codes.to(values.dtype) * (self.scale if self.mode == "autofp8" else scale)
