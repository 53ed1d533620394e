"""Stages that are said to give the same bytes again do so, on the tiny study and its real tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkout import Checkout
from reproquant.provenance.rederive import chosen, rederive
from reproquant.study import Study


@pytest.mark.parametrize(
    ("stage", "which"),
    [
        ("fetch_model", None), ("convert_gguf", None), ("quantize_gguf", None), ("inspect_gguf", "Q4_K_M"),
        ("read_vllm", None), ("quantize_fp8", None), ("evaluate_original", None), ("evaluate_quality", "fp8"), ("report", None),
    ],
)  # fmt: skip
def test_a_stage_gives_the_same_bytes_again(
    stage: str, which: str | None, tiny: Checkout, tmp_path: Path
) -> None:
    artifact = chosen(Study.load(tiny.results / "study.json"), stage, which)
    compared = rederive(tiny.results, artifact, 1, tmp_path / "log")
    assert compared
    assert [str(one) for one in compared if not one.same] == []
