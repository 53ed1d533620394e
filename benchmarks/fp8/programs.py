"""What the FP8 benchmarks have in common: a seeded model, a calibration text, programs run for their cost."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from reproquant.errors import ReproquantError, ToolError  # noqa: E402

TEXTS = ("calibration.txt", "evaluation.txt")


@dataclass(frozen=True)
class Cost:
    """What a program took."""

    cpu_s: float
    wall_s: float
    peak_rss_bytes: int

    def __str__(self) -> str:
        return f"{self.cpu_s:9.1f} {self.wall_s:9.1f} {self.peak_rss_bytes / 1e9:9.2f}"


HEAD = f"{'':>16} {'CPU, s':>9} {'wall, s':>9} {'peak, GB':>9}"


def run(command: list[object], log: Path) -> Cost:
    """Run a program on one core to its end; raises ToolError with its last words."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        said = log.read_text(errors="replace").splitlines()[-5:]
        raise ToolError(command[0], "\n".join(said), "see what it says above")
    return Cost(used.ru_utime + used.ru_stime, time.monotonic() - started, used.ru_maxrss * 1024)


def make_model(preset: str, layers: int | None, target: Path) -> None:
    """A model of a preset's shape with random weights, seed 0, and with fewer layers if asked for.

    Made in a process of its own: what a process held at its peak counts as the
    peak of the programs that it starts afterwards.
    """
    words = [sys.executable, Path(__file__).with_name("make_model.py"), preset, layers or 0, target]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    subprocess.run([str(word) for word in words], check=True, env=environment)


def write_text(target: Path) -> Path:
    """A calibration text that is long enough for some ten thousand tokens: the project's texts, repeated."""
    written = "".join((ROOT / "workflow/data" / name).read_text(encoding="utf-8") for name in TEXTS)
    target.write_text(written * 4, encoding="utf-8")
    return target


def writer(
    python: Path, source: Path, text: Path, rows: int, row_tokens: int, target: Path, device: str = "cpu"
) -> list[object]:
    """The command that runs our writer as AutoFP8 would quantize."""
    return [
        *(python, "-m", "reproquant.fp8.quantize", "--source", source, "--target", target),
        *("--unfinished", target.with_suffix(".unfinished"), "--facts", target.with_suffix(".json")),
        *("--calibration", text, "--form", "raw", "--rows", rows, "--row-tokens", row_tokens),
        *("--activation-scales", "autofp8", "--fused-scales", "separate", "--activation-scheme", "static"),
        *("--device", device),
    ]


def in_scratch(benchmark: Callable[[argparse.Namespace, Path], None], arguments: argparse.Namespace) -> None:
    """Run a benchmark in a folder that is thrown away; what it can't do ends with its reason."""
    try:
        with TemporaryDirectory() as scratch:
            benchmark(arguments, Path(scratch))
    except ReproquantError as error:
        sys.exit(str(error))
