from __future__ import annotations

import sys

import pytest
import torch

from reproquant.files import repository

sys.path.append(str(repository() / "workflow/plugins/fp8_emulated"))

from reproquant_fp8_emulated import scaled_fp8_quant


def test_a_static_scale_divides_and_clamps() -> None:
    codes, scale = scaled_fp8_quant(torch.tensor([[2.0, -1000.0]]).bfloat16(), torch.tensor([0.5]))
    assert codes.float().tolist() == [[4.0, -448.0]]
    assert scale.tolist() == [0.5]


def test_dynamic_scales_are_one_a_token_or_one_for_all() -> None:
    values = torch.tensor([[448.0, 0.0], [-224.0, 112.0]])
    each, scales = scaled_fp8_quant(values, use_per_token_if_dynamic=True)
    assert (each.float().tolist(), scales.tolist()) == ([[448.0, 0.0], [-448.0, 224.0]], [[1.0], [0.5]])
    alike, scale = scaled_fp8_quant(values)
    assert (alike.float().tolist(), scale.tolist()) == (values.tolist(), [1.0])


def test_scales_by_channel_are_not_emulated() -> None:
    with pytest.raises(NotImplementedError):
        scaled_fp8_quant(torch.ones(2, 2), torch.ones(2))
