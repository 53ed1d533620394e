"""The drift sentinel: the baseline once more, after all subjects, for is the machine what it was?"""

from __future__ import annotations

from pathlib import Path

from reproquant.bench.measurement import Measurement
from reproquant.bench.protocol import measure
from reproquant.engines.base import Engine
from reproquant.study import Benchmark, Subject


def measure_again(
    engine: Engine,
    baseline: Subject,
    benchmark: Benchmark,
    log: Path,
    bandwidth_gb_per_s: float | None = None,
) -> Measurement:
    """The baseline's decode once more: the study's rounds in one launch, of the lowest concurrency only.

    The server is the same as before, slots for higher concurrencies included,
    and energy and the engine's own tool are left out. A server that breaks gives ``failed``,
    as in ``measure``, and stops nothing: then nothing is known of a drift. ``bandwidth_gb_per_s``
    is as there, so that the same decode isn't impossible the second time.
    """
    short = {
        "concurrencies": (min(benchmark.concurrencies),),
        "launches": 1,
        "rounds_if_unsteady": benchmark.rounds,
        "native_repetitions": 0,
        "energy_seconds": 0,
    }
    return measure(engine, baseline, benchmark.model_copy(update=short), log, None, bandwidth_gb_per_s)
