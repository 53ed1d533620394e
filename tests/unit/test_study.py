"""Study files: what is accepted, and the words that refuse the rest."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from reproquant.errors import StudyError
from reproquant.files import repository
from reproquant.study import Study

ROOT = repository()
STUDIES = sorted((ROOT / "workflow/studies").glob("*.yaml"))


def overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """What Snakemake does with --configfile: mappings merge, the rest is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = overlay(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


@pytest.fixture
def config() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "config.yaml").read_text())


def change(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    *parents, last = path.split(".")
    place: Any = changed
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    place[last] = value
    return changed


def test_the_v100_study_is_valid(config: dict[str, Any]) -> None:
    study = Study.resolve(config)
    assert study.machine.compute_capability == "7.0"
    assert study.llama_cpp.cuda_architectures == (70,)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_is_valid_over_the_v100_study(path: Path, config: dict[str, Any]) -> None:
    study = Study.resolve(overlay(config, yaml.safe_load(path.read_text())))
    assert study.name == path.stem


def test_a_resolved_study_reads_back_equal(config: dict[str, Any], tmp_path: Path) -> None:
    study = Study.resolve(config)
    file = tmp_path / "study.json"
    file.write_text(json.dumps(study.dump()))
    assert Study.load(file) == study


def test_a_study_that_was_run_stays_readable_when_the_locks_have_moved_on(
    config: dict[str, Any], tmp_path: Path
) -> None:
    data = Study.resolve(config).dump()
    data["vllm"]["version"] = "0.9.1"
    data["environments"]["fp8"] = "fp8-of-last-year"
    data["benchmark"]["prompt"] = "workflow/data/prompt-of-last-year.txt"
    with pytest.raises(StudyError):
        Study.resolve(data)
    file = tmp_path / "study.json"
    file.write_text(json.dumps(data))
    assert Study.load(file).vllm.version == "0.9.1"


def test_a_checkpoint_that_no_subject_serves_is_dropped(config: dict[str, Any]) -> None:
    assert Study.resolve(config).checkpoints["gptq-int4"].quantization == "gptq"
    above = {"subjects": [subject for subject in config["subjects"] if subject["artifact"] != "gptq-int4"]}
    assert Study.resolve({**config, **above}).checkpoints == {}


def test_sections_that_are_not_picked_are_dropped(config: dict[str, Any]) -> None:
    above = yaml.safe_load((ROOT / "workflow/studies/embedded.yaml").read_text())
    study = Study.resolve(overlay(config, above))
    assert study.model.hub is None
    assert study.llama_cpp.git is None


HUB = {"repository": "a/b", "revision": "0" * 40, "licence": "none"}
REFUSED = {
    "an unknown key": ("model.hub.branch", "main", ["model.hub.branch", "no such key"]),
    "a wrong type": ("benchmark.rounds", "five", ["benchmark.rounds", "integer", "'five'"]),
    "a number given as text": ("machine.gpus", "2", ["machine.gpus", "integer"]),
    "a branch as revision": ("model.hub.revision", "main", ["model.hub.revision", "'main'", "40 hex digits"]),
    "a short commit": ("llama_cpp.git.commit", "0c1e570", ["llama_cpp.git.commit", "40 hex digits"]),
    "latest as version": ("vllm.version", "latest", ["vllm.version", "'latest'", "one exact version"]),
    "a range as version": ("vllm.version", ">=0.9", ["vllm.version", "one exact version"]),
    "a vLLM that isn't the locked one": ("vllm.version", "0.9.1", ["vllm.version", "0.9.1", "0.9.2"]),
    "an unknown baseline": (
        "benchmark.baseline",
        "vllm-int3",
        ["benchmark.baseline", "vllm-int3", "vllm-fp16-tp1"],
    ),
    "no concurrency": ("benchmark.concurrencies", [], ["benchmark", "no concurrency"]),
    "a concurrency named twice": ("benchmark.concurrencies", [1, 4, 1], ["benchmark", "1 stands twice"]),
    "an unknown artifact": ("subjects.0.artifact", "Q2_K", ["subjects.0.artifact", "Q2_K"]),
    "an unknown quantization": ("gguf.quantizations", ["q4"], ["gguf.quantizations.0", "Q4_K_M"]),
    "a subject with too many GPUs": ("subjects.0.gpus", 8, ["subjects.0.gpus", "machine.gpus is 2"]),
    "a subject named twice": ("subjects.1.name", "vllm-fp16-tp1", ["subjects.0.name", "two subjects"]),
    "a lock that isn't there": ("environments.vllm", "vllm-9", ["environments.vllm", "make lock"]),
    "a prompt that isn't there": ("benchmark.prompt", "no.txt", ["benchmark.prompt", "no.txt"]),
    "a source without its section": ("model.source", "local", ["model.local", "section is missing"]),
    "an emulation of what isn't FP8": (
        "subjects.0.emulated",
        True,
        ["subjects.0.emulated", "only FP8 in vLLM"],
    ),
    "a row split": (
        "subjects.0.split_mode",
        "row",
        ["subjects.0.split_mode", "older llama.cpp", "split buffers"],
    ),
    "a checkpoint's branch": (
        "checkpoints.gptq-int4.hub.revision",
        "main",
        ["checkpoints.gptq-int4.hub.revision", "40 hex digits"],
    ),
    "a checkpoint without its section": (
        "checkpoints.gptq-int4.source",
        "local",
        ["checkpoints.gptq-int4.local", "section is missing"],
    ),
    "a checkpoint named like the study's own": (
        "checkpoints.fp8",
        {"quantization": "fp8", "source": "hub", "hub": HUB},
        ["checkpoints.fp8", "of that name"],
    ),
    "a study name with a slash": ("name", "a/b", ["name"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_study_is_refused_with_key_reason_and_remedy_for(case: str, config: dict[str, Any]) -> None:
    path, value, words = REFUSED[case]
    with pytest.raises(StudyError) as caught:
        Study.resolve(change(config, path, value), "config.yaml")
    message = str(caught.value)
    assert message.startswith("error: config.yaml")
    assert "\n  do:  " in message
    for word in words:
        assert word in message


def test_all_wrong_keys_are_named_at_once(config: dict[str, Any]) -> None:
    wrong = change(change(config, "model.hub.revision", "main"), "vllm.version", "latest")
    with pytest.raises(StudyError) as caught:
        Study.resolve(wrong)
    assert "model.hub.revision" in str(caught.value)
    assert "vllm.version" in str(caught.value)


def test_an_unknown_subject_is_refused_with_the_names_there_are(config: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="vllm-fp16-tp1"):
        Study.resolve(config).subject("nobody")
