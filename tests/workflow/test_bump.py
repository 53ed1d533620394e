"""The version-bump drill on the V100 study: what is planned again is exactly what the bump can have changed."""

from __future__ import annotations

import re

import pytest

from checkout import Checkout, copy_checkout
from reproquant.files import write_json
from reproquant.provenance.artifacts import artifacts
from reproquant.study import Study

STUDY = Study.of_files([])
VLLM = {f"bench/{subject.name}.json" for subject in STUDY.subjects if subject.engine == "vllm"}
LLAMA_CPP = {f"bench/{subject.name}.json" for subject in STUDY.subjects if subject.engine == "llama_cpp"}
GGUF = ("f16", *STUDY.gguf.quantizations)
AT_THE_END = {f"bench/again/{STUDY.benchmark.baseline}.json", "report/report.json", "root.json"}


STAND_IN = '''"""Stands in for a stage's program: the plan is tested, so its outputs may be empty."""

import sys
from pathlib import Path

from reproquant.provenance.artifacts import artifacts
from reproquant.study import Study

study, output = (Path(sys.argv[sys.argv.index(option) + 1]) for option in ("--study", "--output"))
name = output.relative_to(study.parent).as_posix()
made = [artifact for artifact in artifacts(Study.load(study)) if artifact.main == name]
for path in [name, *(path for artifact in made for path in (*artifact.outputs.values(), artifact.record))]:
    (study.parent / path).touch()
'''


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout in which Snakemake has finished the V100 study, with programs that make empty files."""
    checkout = copy_checkout(tmp_path_factory.mktemp("finished") / "checkout", "v100")
    (checkout.root / "workflow/studies/v100.yaml").write_text("name: v100\n")
    for stage in {"seal", *(artifact.stage for artifact in artifacts(STUDY))}:
        (checkout.root / f"scripts/{stage}.py").write_text(STAND_IN)
    write_json(checkout.results / "study.json", STUDY.dump())
    done = checkout.snakemake("--no-hooks")
    assert done.returncode == 0, done.stderr
    assert planned(checkout) == set()
    return checkout


def planned(checkout: Checkout) -> set[str]:
    """The main output of every job that a dry run would start, relative to the results directory."""
    done = checkout.snakemake("-n", "--quiet", "reason")
    assert done.returncode == 0, done.stderr
    outputs = re.findall(r"^    output: (.+)$", done.stdout, re.MULTILINE)
    mains = {"root.json", *(artifact.main for artifact in artifacts(STUDY))}
    names = {path.removeprefix("results/v100/") for line in outputs for path in line.split(", ")}
    return names & mains


def replaced(checkout: Checkout, edits: dict[str, tuple[str, str]]) -> set[str]:
    """What is planned with texts of files replaced; afterwards they are as before."""
    before = {name: (checkout.root / name).read_text() for name in edits}
    try:
        for name, (old, new) in edits.items():
            assert old in before[name]
            (checkout.root / name).write_text(before[name].replace(old, new))
        return planned(checkout)
    finally:
        for name, text in before.items():
            (checkout.root / name).write_text(text)


def test_another_vllm_reruns_its_environment_its_reading_its_subjects_and_the_report(
    finished: Checkout,
) -> None:
    bump = {
        "envs/vllm-v100.lock": ("\nvllm==0.9.2", "\nvllm==0.9.3"),
        "config.yaml": ("version: 0.9.2", "version: 0.9.3"),
    }
    assert replaced(finished, bump) == {
        "environments/vllm-v100.json",
        "vllm/capabilities.json",
        *VLLM,
        *AT_THE_END,
    }


def test_another_llama_cpp_reruns_its_build_all_gguf_work_its_subjects_and_the_report(
    finished: Checkout,
) -> None:
    bump = {"config.yaml": (f"commit: {STUDY.llama_cpp.spec.commit}", f"commit: {'a' * 40}")}
    assert replaced(finished, bump) == {
        "llama_cpp/source.json",
        "llama_cpp/build.json",
        "llama_cpp/machine_code.json",
        *(f"gguf/{type}.gguf" for type in GGUF),
        *(f"gguf/{type}.inspect.json" for type in GGUF),
        *(f"quality/{artifact}.json" for artifact in STUDY.quality.artifacts if artifact in GGUF),
        *LLAMA_CPP,
        *AT_THE_END,
    }


def test_other_flags_of_vllm_rerun_its_subjects_and_the_report_alone(finished: Checkout) -> None:
    bump = {"config.yaml": ("max_model_len: 8192", "max_model_len: 4096")}
    assert replaced(finished, bump) == {*VLLM, *AT_THE_END}


def test_a_version_without_its_lock_is_refused_before_anything_is_planned(finished: Checkout) -> None:
    config = finished.root / "config.yaml"
    text = config.read_text()
    try:
        config.write_text(text.replace("version: 0.9.2", "version: 0.9.3"))
        done = finished.snakemake("-n")
    finally:
        config.write_text(text)
    assert done.returncode != 0
    assert "the study says 0.9.3 and envs/vllm-v100.lock holds 0.9.2" in done.stderr
