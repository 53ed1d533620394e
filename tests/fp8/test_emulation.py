"""The arithmetic of the vLLM plugin against W8A8 written out; in vLLM itself: tests/end_to_end."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from reproquant.files import repository
from reproquant.quality.weights import Merged

sys.path.append(str(repository() / "workflow/plugins/fp8_emulated"))

from reproquant_fp8_emulated.arithmetic import SHIFT, linear, merged, to_codes, widened

WIDTHS = (24, 8, 8)
SCALES = torch.tensor([0.02, 0.05, 0.003])
INPUT_SCALE = torch.tensor(0.01)
ALL_CODES = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
ROUNDING = {torch.float32: 2.0**-20, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
"""Of the largest output: a product and an output are rounded once each to the dtype."""


def parts(inputs: int) -> list[Tensor]:
    """Codes of q, k and v, as a checkpoint with separate scales has them."""
    random = torch.Generator().manual_seed(1)
    return [to_codes(torch.randn(rows, inputs, generator=random) * 150, torch.tensor(1.0)) for rows in WIDTHS]


def written_out(values: Tensor, scale: Tensor | None, bias: Tensor) -> Tensor:
    """Output by output, in float64: codes of the merged weight times codes of the input, then both scales."""
    largest = SCALES.max()
    rows: list[Tensor] = []
    for part, own in zip(parts(values.shape[1]), SCALES, strict=True):
        again = (part.half() * own).float() / largest
        rows += again.clamp(-448, 448).to(torch.float8_e4m3fn).double().unbind()
    outputs = torch.zeros(len(values), len(rows), dtype=torch.float64)
    for token, row in enumerate(values.float()):
        own = row.abs().max() / 448 if scale is None else scale
        seen = (row / own).clamp(-448, 448).to(torch.float8_e4m3fn).double()
        for place, weights in enumerate(rows):
            outputs[token, place] = sum((weights * seen).tolist()) * (own * largest).item() + bias[place]
    return outputs


@pytest.mark.parametrize("dtype", ROUNDING)
def test_every_code_is_widened_exactly(dtype: torch.dtype) -> None:
    codes = ALL_CODES.view(torch.float8_e4m3fn)
    assert torch.equal(widened(codes, dtype).float() / SHIFT, codes.float())


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("scale", [INPUT_SCALE, None], ids=["static", "dynamic"])
def test_merged_linears_with_separate_scales_give_w8a8_as_written_out(
    dtype: torch.dtype, scale: Tensor | None
) -> None:
    values = (torch.randn(5, 48, generator=torch.Generator().manual_seed(2)) * 2).to(dtype)
    bias = torch.linspace(-1, 1, sum(WIDTHS)).to(dtype)
    codes, common = merged(torch.cat(parts(48)), SCALES, WIDTHS)
    found = linear(values, codes, common, scale, bias)
    wanted = written_out(values, scale, bias)
    assert found.dtype == dtype
    assert (found - wanted).abs().max() < ROUNDING[dtype] * wanted.abs().max()


def test_inputs_left_alone_would_not_pass_for_w8a8() -> None:
    values = torch.randn(5, 48, generator=torch.Generator().manual_seed(2)) * 2
    wanted = written_out(values, INPUT_SCALE, torch.zeros(sum(WIDTHS)))
    weights = torch.cat([part.double() * scale for part, scale in zip(parts(48), SCALES, strict=True)])
    difference = (values.double() @ weights.T - wanted).abs().max()
    assert difference > ROUNDING[torch.bfloat16] * wanted.abs().max()


def test_the_quality_evaluator_computes_the_same() -> None:
    values = torch.randn(5, 48, generator=torch.Generator().manual_seed(3))
    codes, common = merged(torch.cat(parts(48)), SCALES, WIDTHS)
    evaluator = Merged.of(parts(48), list(SCALES), INPUT_SCALE)
    wanted = torch.cat(evaluator(values, [None] * 3), dim=-1)
    torch.testing.assert_close(linear(values, codes, common, INPUT_SCALE, None), wanted, rtol=1e-5, atol=1e-5)


def test_the_largest_products_do_not_overflow_float16() -> None:
    """With as many inputs as Qwen2.5-7B's widest Linear has."""
    values = torch.full((1, 18944), 448.0, dtype=torch.float16)
    codes = torch.full((2, 18944), 448.0).to(torch.float8_e4m3fn)
    outputs = linear(values, codes, torch.tensor(1e-6), torch.tensor(1.0), None)
    assert outputs.flatten().tolist() == pytest.approx([448 * 448 * 18944 * 1e-6] * 2, rel=1e-3)
