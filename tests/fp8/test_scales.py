from __future__ import annotations

import pytest
import torch

from reproquant.errors import FormatError
from reproquant.fp8.scales import InputObserver, quantize


def test_the_largest_value_gets_the_largest_code() -> None:
    codes, scale = quantize(torch.tensor([-3.0, 0.5, 1.5]), "values")
    assert codes.float().tolist() == [-448.0, 72.0, 224.0]
    assert scale.item() == pytest.approx(3 / 448)


def test_the_reciprocal_and_its_product_are_each_rounded_to_the_values_own_dtype() -> None:
    _, scale = quantize(torch.tensor([3.0], dtype=torch.bfloat16), "values")
    assert scale.dtype == torch.float32
    # 1/3 is 0.333984375 in bfloat16, and 448 times that is 149.625: 150 in bfloat16
    assert scale.item() == pytest.approx(1 / 150)


def test_a_scale_rounded_up_does_not_push_codes_past_the_largest_one() -> None:
    values = torch.linspace(0.5, 2.0, 1501).bfloat16().unique()
    for value in values:
        codes, _ = quantize(value[None], "values")
        assert 440 < codes.float().item() <= 448


def test_a_tensor_of_zeros_stays_zero() -> None:
    codes, scale = quantize(torch.zeros(4, dtype=torch.bfloat16), "values")
    assert (codes.float() * scale).tolist() == [0.0] * 4


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_is_refused_by_the_tensors_name(value: float) -> None:
    with pytest.raises(FormatError, match=r"model\.layers\.3"):
        quantize(torch.tensor([1.0, value]), "model.layers.3.mlp.up_proj.weight")


def test_an_observed_input_keeps_the_largest_rows_scale() -> None:
    observer = InputObserver("corrected")
    for row in ([1.0], [4.0], [2.0]):
        observer(torch.tensor(row), "input")
    assert observer.scale is not None
    assert observer.scale.item() == pytest.approx(4 / 448)


def test_a_smaller_row_after_a_larger_one_is_inflated_by_autofp8_and_not_when_corrected() -> None:
    seen = {}
    for mode in ("autofp8", "corrected"):
        observer = InputObserver(mode)
        observer(torch.tensor([4.0]), "input")
        seen[mode] = observer(torch.tensor([2.0]), "input").item()
    assert seen == {"autofp8": pytest.approx(4.0), "corrected": pytest.approx(2.0)}
