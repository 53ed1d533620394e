"""Measure copying and reading of memory by several cores at once, after McCalpin's STREAM.

Run as a program: one line of JSON, {gb_per_s, how, array_bytes}. The two arrays
are as large as the last-level cache, each, or larger. A copy reads and writes each
byte, so it counts twice; a read (a dot product of an array with itself) once.
The larger figure is given: decoding reads, and a copy may be slower or faster.
A repetition lasts from the first core's start to the last one's end, by their own
clocks: a thread that only waited for them would often wake late, while they work.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import psutil

ARRAY_BYTES = 1 << 28
REPETITIONS = 3
PIECE = 1 << 20

Array = np.ndarray[tuple[int], np.dtype[np.float64]]


def measure(cores: Sequence[int], cache_bytes: int) -> dict[str, float | int | str]:
    """The best repetition of the better kind; memory that isn't free sets the arrays' size a limit."""
    size = min(max(ARRAY_BYTES, cache_bytes), psutil.virtual_memory().available // 4)
    found: dict[str, float] = {"copy": 0.0, "read": 0.0}
    barrier = threading.Barrier(len(cores) + 1)
    spans = {core: (0.0, 0.0) for core in cores}
    kinds: dict[str, Callable[[Array, Array], object]] = {"copy": _copy, "read": _read}

    def work(core: int) -> None:
        os.sched_setaffinity(0, {core})
        source, target = (np.ones(size // len(cores) // 8) for _ in range(2))
        for kind in kinds.values():
            for _ in range(REPETITIONS):
                barrier.wait()
                begun = time.perf_counter()
                kind(source, target)
                spans[core] = begun, time.perf_counter()
                barrier.wait()

    threads = [threading.Thread(target=work, args=(core,), daemon=True) for core in cores]
    for thread in threads:
        thread.start()
    for name in kinds:
        for _ in range(REPETITIONS):
            barrier.wait()
            barrier.wait()
            begun, ended = zip(*spans.values(), strict=True)
            moved = size * (2 if name == "copy" else 1)
            found[name] = max(found[name], moved / (max(ended) - min(begun)) / 1e9)
    how = max(found, key=lambda name: found[name])
    return {"gb_per_s": found[how], "how": f"{how} by {len(cores)} core(s)", "array_bytes": size}


def _copy(source: Array, target: Array) -> None:
    np.copyto(target, source)


def _read(source: Array, target: Array) -> float:
    return sum(float(np.dot(part, part)) for part in np.array_split(source, -(-len(source) // PIECE)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", type=int, nargs="+", required=True)
    parser.add_argument("--cache-bytes", type=int, required=True)
    given = parser.parse_args()
    print(json.dumps(measure(given.cores, given.cache_bytes)))
