"""The plan: complete without the hardware, cheap, and refused in words when the study is wrong."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from checkout import Checkout, copy_checkout
from reproquant.files import repository

ROOT = repository()
SNAKEMAKE = Path(sys.executable).with_name("snakemake")


def snakemake(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Snakemake on the checkout with ``folder`` for its results."""
    command = [SNAKEMAKE, "--snakefile", ROOT / "Snakefile", "--directory", folder, "--cores", "2", *words]
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, cwd=ROOT
    )


def planned(output: str) -> set[str]:
    """The rules in the last job table of a dry run's output."""
    table = output.rsplit("Job stats:", 1)[1].split("total", 1)[0]
    return {line.split()[0] for line in table.splitlines()[3:] if line.strip()}


def test_the_v100_study_has_its_whole_plan_on_a_machine_without_gpu(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = snakemake(tmp_path, "-n", "--configfile", ROOT / "config.yaml")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert planned(done.stdout) == {
        "all", "build_environment", "read_vllm", "fetch_llama_cpp", "build_llama_cpp", "prove_cuda", "fetch_model", "fetch_checkpoint", "convert_gguf",
        "quantize_gguf", "inspect_gguf", "quantize_fp8", "benchmark", "benchmark_again", "evaluate_original", "evaluate_quality", "report", "seal",
    }  # fmt: skip
    print(f"CPU seconds: {after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime:.2f}")


def test_a_wrong_key_stops_the_run_before_any_job_with_one_message(tmp_path: Path) -> None:
    study = tmp_path / "wrong.yaml"
    study.write_text("model: {hub: {revision: main}}\n")
    done = snakemake(tmp_path, "-n", "--configfile", study)
    assert done.returncode != 0
    assert "model.hub.revision" in done.stderr
    assert "40 hex digits" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Job stats" not in done.stdout


def test_a_dry_run_writes_no_results(tmp_path: Path) -> None:
    snakemake(tmp_path, "-n", "--configfile", ROOT / "config.yaml")
    assert not (tmp_path / "results").exists()


TARGET = "results/tiny/llama_cpp/source.json"


@pytest.fixture
def locked(tmp_path: Path) -> Checkout:
    """A checkout in which a run that no longer lives has left Snakemake's locks."""
    checkout = copy_checkout(tmp_path / "checkout", "tiny")
    locks = checkout.root / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text(f"{TARGET}\n")
    (locks / "0.input.lock").write_text("")
    return checkout


def test_a_lock_that_a_dead_run_left_is_cleared(locked: Checkout) -> None:
    done = locked.snakemake(TARGET)
    assert done.returncode == 0, done.stderr
    assert "the run that held it is gone" in done.stderr
    assert (locked.root / TARGET).is_file()


def test_a_lock_of_a_living_run_is_respected(locked: Checkout) -> None:
    holder = os.open(locked.root / ".snakemake/reproquant.alive", os.O_WRONLY | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    done = locked.snakemake(TARGET)
    assert done.returncode != 0
    assert "lock" in done.stderr.lower()
    assert not (locked.root / TARGET).exists()
