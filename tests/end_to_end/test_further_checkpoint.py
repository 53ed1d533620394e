"""A checkpoint that somebody else has quantized: fetched, served by the real vLLM, recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import gptq_checkpoint
from checkout import Checkout
from reproquant.files import read_json, sha256_file

SUBJECT = {"name": "vllm-gptq", "engine": "vllm", "artifact": "gptq-int4"}
BENCH = "bench/vllm-gptq.json"


@pytest.fixture(scope="module")
def served(tiny: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A study of its own beside the tiny one, as far as the measurement of a local GPTQ checkpoint."""
    folder = gptq_checkpoint.write(
        tiny.results / "model/checkpoint", tmp_path_factory.mktemp("gptq") / "checkpoint"
    )
    study = yaml.safe_load((tiny.root / "workflow/studies/tiny.yaml").read_text())
    local = {"quantization": "gptq", "source": "local", "local": {"path": str(folder), "licence": "none"}}
    study |= {"name": "gptq", "checkpoints": {"gptq-int4": local}}
    study["subjects"] = [SUBJECT, *study["subjects"]]
    (tiny.root / "workflow/studies/gptq.yaml").write_text(yaml.safe_dump(study))
    checkout = replace(tiny, study="gptq")
    done = checkout.snakemake(f"results/gptq/{BENCH}")
    assert done.returncode == 0, done.stdout + done.stderr
    return checkout


def test_vllm_serves_the_checkpoint_of_that_name_with_its_own_kernels(served: Checkout) -> None:
    measured = read_json(served.results / BENCH)
    assert measured["status"] in ("ok", "flagged"), measured["reasons"]
    assert measured["artifact"] == "gptq-int4"
    weights = served.results / "checkpoints/gptq-int4/checkpoint/model.safetensors"
    assert measured["artifact_bytes"] == weights.stat().st_size
    assert "quantization=auto_gptq" in (served.results / "logs/benchmark/vllm-gptq.log").read_text()


def test_the_measurement_leads_to_the_checkpoints_bytes(served: Checkout) -> None:
    name = "checkpoints/gptq-int4/manifest.json"
    record = read_json(served.results / f"{BENCH}.prov.json")
    needs = record["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert sha256_file(served.results / name) in [
        need["digest"]["sha256"] for need in needs if need["name"] == name
    ]
    listed = {file["path"]: file["sha256"] for file in read_json(served.results / name)["files"]}
    folder = Path(served.results / name).with_name("checkpoint")
    assert listed == {path.name: sha256_file(path) for path in folder.iterdir()}
    assert "config.json" in listed
