"""The studies for one H200 and for two, planned on a machine that has neither GPU nor vLLM."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from checkout import Checkout, copy_checkout
from reproquant.files import write_text
from reproquant.provenance.artifacts import artifacts
from reproquant.study import Study

PACKAGES = {
    "torch": {"jinja2": "3", "numpy": "2", "safetensors": "0.8.0", "tokenizers": "0.23", "torch": "2.11.0", "transformers": "5.17.0"},
    "vllm": {"torch": "2.11.0", "vllm": "0.22.1"},
}  # fmt: skip


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return with_pythons(tmp_path_factory.mktemp("h200"), "h200")


def with_pythons(folder: Path, study: str) -> Checkout:
    """A checkout with the study's Pythons, which have names of packages only."""
    checkout = copy_checkout(folder / "checkout", study)
    for name, packages in PACKAGES.items():
        python = checkout.root / ".bundle/environments" / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", python], check=True)
        (site_packages,) = python.glob("lib/python3*/site-packages")
        for package, version in packages.items():
            metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
            write_text(site_packages / f"{package}-{version}.dist-info/METADATA", metadata)
    return checkout


def test_it_has_its_whole_plan_with_five_subjects(checkout: Checkout) -> None:
    assert checkout.planned() == {
        "all": 1, "build_environment": 3, "read_vllm": 1, "fetch_llama_cpp": 1, "build_llama_cpp": 1, "prove_cuda": 1, "fetch_model": 1,
        "convert_gguf": 1, "quantize_gguf": 1, "inspect_gguf": 2, "quantize_fp8": 1, "benchmark": 5, "benchmark_again": 1, "report": 1, "seal": 1,
    }  # fmt: skip


def test_on_two_cards_seven_subjects_share_the_same_artifacts(tmp_path: Path) -> None:
    assert with_pythons(tmp_path, "h200x2").planned() == {
        "all": 1, "build_environment": 3, "read_vllm": 1, "fetch_llama_cpp": 1, "build_llama_cpp": 1, "prove_cuda": 1, "fetch_model": 1,
        "convert_gguf": 1, "quantize_gguf": 1, "inspect_gguf": 2, "quantize_fp8": 1, "benchmark": 7, "benchmark_again": 1, "report": 1, "seal": 1,
    }  # fmt: skip


def make_believe(checkout: Checkout) -> None:
    """Empty outputs that Snakemake takes for its own; the doctor, who would miss the GPU, is sent away."""
    (checkout.root / "scripts/doctor.py").write_text("")
    study = Study.of_files([checkout.root / "workflow/studies/h200.yaml"])
    names = [name for one in artifacts(study) for name in (*one.outputs.values(), one.record)]
    for name in [*names, "root.json"]:
        write_text(checkout.results / name, "{}")
    done = checkout.snakemake("--touch", "--forceall")
    assert done.returncode == 0, done.stderr


def test_other_flags_for_vllm_rerun_its_subjects_the_sentinel_and_the_report_alone(
    checkout: Checkout,
) -> None:
    make_believe(checkout)
    assert checkout.planned() == {}
    file = checkout.root / "workflow/studies/h200.yaml"
    text = file.read_text()
    file.write_text(text.replace('"0.9"', '"0.8"'))
    assert file.read_text() != text
    assert checkout.planned() == {"benchmark": 3, "benchmark_again": 1, "report": 1, "seal": 1, "all": 1}
    told = checkout.snakemake("-n", "--quiet", "host").stdout
    assert set(re.findall(r"subject=([\w-]+)", told)) == {
        "vllm-fp16",
        "vllm-fp8",
        "vllm-fp8-emulated",
        "llama-f16",
    }
