"""kill -9 of a part of a server in the middle of a measurement: that subject fails, the others go on."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from checkout import Checkout, copy_checkout
from reproquant.files import read_json
from reproquant.machine import host

FAILED_WITHIN_S = 60
BEFORE_THE_ROUNDS = 5
CHANGES = {
    "  rounds: 3\n": "  rounds: 9\n",
    "{name: vllm-bf16, engine: vllm, artifact: checkpoint}": '{name: vllm-bf16, engine: vllm, artifact: checkpoint, arguments: [-tp, "2"]}',
    "VLLM_CPU_KVCACHE_SPACE=1": "VLLM_CPU_KVCACHE_SPACE=1, VLLM_CPU_OMP_THREADS_BIND=nobind",
}  # fmt: skip
"""Rounds enough to be killed in, and vLLM's tensor parallel by two workers, on cores that they share."""


@pytest.fixture
def unmeasured(tiny: Checkout, tmp_path: Path) -> Checkout:
    """The finished tiny study with other settings, and without its measurements."""
    checkout = copy_checkout(tmp_path / "checkout", "tiny")
    shutil.copytree(tiny.results, checkout.results)
    shutil.copytree(tiny.root / ".snakemake", checkout.root / ".snakemake")
    for folder in ("bench", "logs"):
        shutil.rmtree(checkout.results / folder)
    study = checkout.root / "workflow/studies/tiny.yaml"
    text = study.read_text()
    for old, new in CHANGES.items():
        assert old in text
        text = text.replace(old, new)
    study.write_text(text)
    return checkout


@contextmanager
def measuring(checkout: Checkout) -> Iterator[subprocess.Popen[str]]:
    """Snakemake, measuring both subjects; nothing of it is left when the body fails."""
    targets = [f"results/tiny/bench/{name}.json" for name in ("vllm-bf16", "llama-q4km")]
    process = subprocess.Popen(
        checkout.command(*targets), cwd=checkout.root, env=checkout.environment, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        for one in below(process):
            one.kill()
        process.kill()
        process.wait()


def below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []


def wait_for_a_round(process: subprocess.Popen[str], log: Path) -> None:
    """Until the server has taken more requests than its warm-up has."""
    deadline = time.monotonic() + 300
    while not log.is_file() or log.read_text().count("POST /v1/completions") <= BEFORE_THE_ROUNDS:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)


def test_one_of_two_vllm_workers_is_killed_the_other_ends_the_subject_fails_within_a_minute_and_others_go_on(
    unmeasured: Checkout,
) -> None:
    bench = unmeasured.results / "bench"
    with measuring(unmeasured) as process:
        wait_for_a_round(process, unmeasured.results / "logs/benchmark/vllm-bf16.log")
        first, last = (one for one in below(process) if one.name().startswith("VLLM::Worker"))
        group = os.getpgid(last.pid)
        assert {first.pid, last.pid} < set(host.group_members(group))
        last.kill()
        killed = time.monotonic()
        while not (bench / "vllm-bf16.failed.json").is_file():
            assert time.monotonic() - killed < FAILED_WITHIN_S
            time.sleep(0.1)
        print(f"failed {time.monotonic() - killed:.1f} s after the kill")
        assert host.group_members(group) == []
        _, told = process.communicate()
    assert process.returncode != 0 and "subject vllm-bf16" in told
    failed = read_json(bench / "vllm-bf16.failed.json")
    assert failed["status"] == "failed" and failed["reasons"]
    assert len(failed["warmup"]) == BEFORE_THE_ROUNDS
    assert any(request["error"] for request in failed["requests"])
    assert not (bench / "vllm-bf16.json").exists()
    assert read_json(bench / "llama-q4km.json")["status"] in ("ok", "flagged")
