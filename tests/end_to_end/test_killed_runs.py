"""kill -9 of the whole process tree in the middle of a stage, then the same command again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from checkout import Checkout, copy_checkout
from reproquant.files import read_json, sha256_file


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return copy_checkout(tmp_path, "tiny")


def tree(process: subprocess.Popen) -> Iterator[psutil.Process]:
    parent = psutil.Process(process.pid)
    yield from parent.children(recursive=True)
    yield parent


def kill_in_the_middle_of(checkout: Checkout, stage: str, target: str, timeout_s: float = 300) -> None:
    """Start the study and kill -9 everything as soon as the stage has something half-written."""
    process = subprocess.Popen(
        checkout.command(target), cwd=checkout.root, env=checkout.environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + timeout_s
    while not [
        *checkout.results.glob(f".scratch/{stage}*/*"),
        *checkout.results.glob(f".unfinished/{stage}/*/*"),
    ]:
        assert time.monotonic() < deadline, f"{stage} never started"
        assert process.poll() is None, f"the run ended before {stage}"
        time.sleep(0.01)
    for one in tree(process):
        os.kill(one.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(
    ("stage", "target"),
    [
        ("fetch_model", "model/manifest.json"),
        ("convert_gguf", "gguf/f16.gguf"),
        ("quantize_gguf", "gguf/Q4_K_M.gguf"),
        ("quantize_fp8", "fp8/manifest.json"),
    ],
)
def test_a_killed_run_completes_when_started_again(
    stage: str, target: str, checkout: Checkout, tiny: Checkout
) -> None:
    path = f"results/tiny/{target}"
    kill_in_the_middle_of(checkout, stage, path)
    assert not (checkout.root / path).exists()
    assert list((checkout.root / ".snakemake/locks").iterdir())
    done = checkout.snakemake(path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sha256_file(checkout.root / path) == sha256_file(tiny.root / path)


def test_a_benchmark_that_is_killed_leaves_no_server_and_no_measurement(
    checkout: Checkout, tiny: Checkout
) -> None:
    target = "results/tiny/bench/llama-q4km.json"
    process = subprocess.Popen(
        checkout.command(target), cwd=checkout.root, env=checkout.environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    server: list[psutil.Process] = []
    while not server:
        assert time.monotonic() < deadline
        server = [one for one in tree(process) if "llama-server" in one.name()]
        time.sleep(0.05)
    for one in tree(process):
        os.kill(one.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(server, timeout=10)
    assert not server[0].is_running()
    assert not (checkout.root / target).exists()
    done = checkout.snakemake(target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_json(checkout.root / target)["status"] in ("ok", "flagged")
