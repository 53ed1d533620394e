"""The doctor stops a run only for what the run needs: without a GPU everything but measuring can be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkout import Checkout, copy_checkout

ENVIRONMENT = "results/elsewhere/environments/converter.json"
MEASUREMENT = "results/elsewhere/bench/llama-f16.json"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Checkout:
    """The V100 study with more GPUs than any machine has, and no nvcc."""
    study = "name: elsewhere\nmachine: {gpus: 64}\nllama_cpp: {cuda_toolkit: /nowhere}\n"
    checkout = copy_checkout(tmp_path / "checkout", "elsewhere")
    (checkout.root / "workflow/studies/elsewhere.yaml").write_text(study)
    return checkout


def test_without_gpus_and_nvcc_what_needs_neither_is_made(elsewhere: Checkout) -> None:
    done = elsewhere.snakemake(ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert (elsewhere.root / ENVIRONMENT).is_file()
    assert "not in the way of what runs now: GPUs, nvcc" in done.stderr


def test_without_gpus_a_measurement_is_stopped_before_anything_is_made(elsewhere: Checkout) -> None:
    done = elsewhere.snakemake(MEASUREMENT)
    assert done.returncode != 0
    assert "GPUs: found" in done.stderr and "needed 64" in done.stderr
    assert "nvcc" in done.stderr
    made = [path for path in elsewhere.results.rglob("*") if path.is_file()]
    assert {path.name for path in made} == {"study.json", "doctor.json"}
