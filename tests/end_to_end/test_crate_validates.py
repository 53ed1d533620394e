"""The exported crate, judged by the RO-Crate community's own validator."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from checkout import Checkout
from reproquant.files import read_json, repository, write_json
from reproquant.provenance.crate import export
from reproquant.toolchain.python_env import PythonEnv, ensure

PROFILES = {"ro-crate-1.1", "process-run-crate-0.5", "workflow-run-crate-0.5", "provenance-run-crate-0.5"}


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> PythonEnv:
    return ensure("crate", tmp_path_factory.mktemp("crate") / "log")


@pytest.fixture(scope="module")
def cache(tools: PythonEnv, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cache") / "http"
    program = Path(__file__).with_name("fill_validator_cache.py")
    subprocess.run([tools.python, program, path], check=True)
    return path


@pytest.fixture(scope="module")
def crate(tiny: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("exported") / "crate"
    export(tiny.results, target)
    return target


def judged(crate: Path, tools: PythonEnv, cache: Path, scratch: Path) -> dict:
    command = [
        tools.python.with_name("rocrate-validator"), "-y", "validate", "-p", "provenance-run-crate-0.5", "--offline",
        "--cache-path", cache, "--no-paging", "-f", "json", "-o", scratch / "answer.json", crate,
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, check=False)
    return read_json(scratch / "answer.json")


def test_the_crate_passes_every_required_check_of_every_profile(
    crate: Path, tools: PythonEnv, cache: Path, tmp_path: Path
) -> None:
    answer = judged(crate, tools, cache, tmp_path)
    assert answer["issues"] == []
    assert answer["passed"]
    assert set(answer["statistics"]["profiles"]) >= PROFILES
    assert answer["statistics"]["total_checks_by_severity"]["REQUIRED"] > 50


def test_the_crate_of_results_that_are_kept_here_passes_as_well(
    tools: PythonEnv, cache: Path, tmp_path: Path
) -> None:
    export(repository() / "published/h200-2026-12-01", tmp_path / "crate")
    answer = judged(tmp_path / "crate", tools, cache, tmp_path)
    assert (answer["issues"], answer["passed"]) == ([], True)


def test_the_validator_refuses_a_crate_whose_run_names_no_program(
    crate: Path, tools: PythonEnv, cache: Path, tmp_path: Path
) -> None:
    metadata = crate / "ro-crate-metadata.json"
    content = metadata.read_bytes()
    data = read_json(metadata)
    next(one for one in data["@graph"] if one["@id"] == "#run-report/report.json").pop("instrument")
    try:
        write_json(metadata, data)
        assert not judged(crate, tools, cache, tmp_path)["passed"]
    finally:
        metadata.write_bytes(content)


def test_runcrate_reads_every_run_of_the_crate(crate: Path, tools: PythonEnv) -> None:
    command = [tools.python.with_name("runcrate"), "report", crate]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    runs = [
        one for one in read_json(crate / "ro-crate-metadata.json")["@graph"] if one["@type"] == "CreateAction"
    ]
    assert said.count("action: #run") == len(runs)
