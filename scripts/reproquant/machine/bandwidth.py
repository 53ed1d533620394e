"""How fast this machine's memory is: a copy within a GPU's memory, or copies and reads by CPU cores.

Each runs in a process of its own, which gives all its memory back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproquant.errors import ToolError
from reproquant.files import repository
from reproquant.machine.gpu import BY_BUS

LIMIT_S = 120
CACHES = Path("/sys/devices/system/cpu")


def of_gpus(visible: str) -> list[dict[str, Any]]:
    """A device copy on each GPU that ``CUDA_VISIBLE_DEVICES`` names, one after the other.

    Each as {gb_per_s, array_bytes, cache_bytes}. Raises ToolError if one can't be had.
    """
    return [
        _run(
            "reproquant.machine.copy_on_gpu", (), {"CUDA_DEVICE_ORDER": BY_BUS, "CUDA_VISIBLE_DEVICES": name}
        )
        for name in visible.split(",")
    ]


def of_cpu(cores: Sequence[int]) -> dict[str, Any]:
    """Copies and reads by these cores at once: {gb_per_s, how, array_bytes, cache_bytes}.

    Raises ToolError if it fails.
    """
    cache = last_level_cache_bytes(cores)
    words = ("--cores", *map(str, cores), "--cache-bytes", str(cache or 0))
    found = _run(
        "reproquant.machine.copy_on_cpu", words, {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    )
    return {**found, "cache_bytes": cache}


def last_level_cache_bytes(cores: Sequence[int], root: Path = CACHES) -> int | None:
    """The size of all last-level caches that these cores share; null where the kernel doesn't tell."""
    found: dict[str, tuple[int, int]] = {}
    for core in cores:
        for cache in (root / f"cpu{core}/cache").glob("index*"):
            try:
                level, size, shared = (
                    (cache / name).read_text().strip() for name in ("level", "size", "shared_cpu_list")
                )
                found[f"{level}:{shared}"] = (int(level), int(size.removesuffix("K")) << 10)
            except (OSError, ValueError):
                continue
    last = max((level for level, _ in found.values()), default=None)
    return sum(size for level, size in found.values() if level == last) if last else None


def _run(module: str, words: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """A module's one line of JSON, run with this Python."""
    command = [sys.executable, "-m", module, *words]
    environment = {**os.environ, **variables, "PYTHONPATH": str(repository() / "scripts")}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode == 0:
            return dict(json.loads(done.stdout))
        words_of_it = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        words_of_it = str(error)
    raise ToolError(module, words_of_it, "the measurement goes on without a measured bandwidth")
