"""kill -9 of a part of a server in the middle of a measurement: that subject fails, the others go on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from checkout import Checkout, copy_checkout
from reproquant.files import read_json
from reproquant.machine import host

FAILED_WITHIN_S = 60
BEFORE_THE_ROUNDS = 5


@pytest.fixture
def unmeasured(tiny: Checkout, tmp_path: Path) -> Checkout:
    """The finished tiny study without its measurements, and with rounds enough to be killed in."""
    checkout = copy_checkout(tmp_path / "checkout", "tiny")
    shutil.copytree(tiny.results, checkout.results)
    shutil.copytree(tiny.root / ".snakemake", checkout.root / ".snakemake")
    shutil.rmtree(checkout.results / "bench")
    study = checkout.root / "workflow/studies/tiny.yaml"
    study.write_text(study.read_text().replace("  rounds: 3\n", "  rounds: 9\n"))
    return checkout


def engine_cores(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """vLLM's processes that compute, below Snakemake's."""
    below = psutil.Process(process.pid).children(recursive=True)
    return [one for one in below if one.is_running() and one.name().startswith("VLLM::Engine")]


def wait_for_a_round(process: subprocess.Popen[str], log: Path) -> None:
    """Until the server has taken more requests than its warm-up has."""
    deadline = time.monotonic() + 300
    while not log.is_file() or log.read_text().count("POST /v1/completions") <= BEFORE_THE_ROUNDS:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)


def test_a_killed_vllm_worker_fails_its_subject_within_a_minute_and_the_others_go_on(
    unmeasured: Checkout,
) -> None:
    bench = unmeasured.results / "bench"
    targets = [f"results/tiny/bench/{name}.json" for name in ("vllm-bf16", "llama-q4km")]
    process = subprocess.Popen(
        unmeasured.command(*targets), cwd=unmeasured.root, env=unmeasured.environment, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for_a_round(process, unmeasured.results / "logs/benchmark/vllm-bf16.log")
    [core] = engine_cores(process)
    group = os.getpgid(core.pid)
    assert len(host.group_members(group)) > 1
    os.kill(core.pid, signal.SIGKILL)
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
