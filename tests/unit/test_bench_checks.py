"""What makes a run doubtful: an unsteady speed, a busy machine, a single round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mock_engine import benchmark as mock_benchmark
from reproquant.bench.checks import judge
from reproquant.bench.measurement import Level, Round
from reproquant.bench.statistics import summarize
from reproquant.study import Benchmark, Limits


@pytest.fixture
def prompt(tmp_path: Path) -> Path:
    return tmp_path / "prompt.txt"


def benchmark(prompt: Path, **changes: Any) -> Benchmark:
    """The mock's workload with the limits that a study has if it names none."""
    return mock_benchmark(prompt, **{"limits": Limits(), **changes})


def level(*decode: float, concurrency: int = 1) -> Level:
    steady = summarize([100.0] * len(decode))
    return Level(
        concurrency=concurrency,
        ttft_ms=steady,
        prefill_tok_per_s=steady,
        decode_tok_per_s=summarize(decode),
        server_decode_tok_per_s=summarize(decode),
        output_tok_per_s=steady,
    )


def test_an_unsteady_decode_is_flagged_on_a_cpu_and_unstable_on_a_gpu(prompt: Path) -> None:
    found = [level(96, 100, 100)]
    assert judge([], found, benchmark(prompt), 0, on_gpu=False, busy_share=0)[0] == "flagged"
    status, (reason,) = judge([], found, benchmark(prompt), 0, on_gpu=True, busy_share=0)
    assert status == "unstable" and "decode speed differs by 4.0% of its median; 3% is steady" in reason
    assert judge([], [level(98, 100, 100)], benchmark(prompt), 0, on_gpu=True, busy_share=0) == ("ok", [])


def test_requests_that_race_each_other_are_not_gated_on_their_own_speed(prompt: Path) -> None:
    found = [level(50, 100, 100, concurrency=4)]
    assert judge([], found, benchmark(prompt), 0, on_gpu=True, busy_share=0) == ("ok", [])


def test_a_busy_machine_is_flagged_on_a_cpu(prompt: Path) -> None:
    status, (reason,) = judge([], [level(100)], benchmark(prompt), 0, on_gpu=False, busy_share=0.5)
    assert status == "flagged" and "50%" in reason


def test_a_single_round_is_flagged_because_it_shows_no_spread(prompt: Path) -> None:
    status, (reason,) = judge([], [level(100)], benchmark(prompt, rounds=1), 0, on_gpu=False, busy_share=0)
    assert status == "flagged" and "one round" in reason


def test_a_speed_that_only_ever_falls_is_a_drift(prompt: Path) -> None:
    falling = [level(101.5, 101, 100, 99.5, 99)]
    status, (reason,) = judge([], falling, benchmark(prompt), 0, on_gpu=True, busy_share=0)
    assert status == "unstable" and "fell from round to round, by 2.5% in all; 1% is steady" in reason
    mixed = [level(101.5, 100, 101, 99.5, 99)]
    assert judge([], mixed, benchmark(prompt), 0, on_gpu=True, busy_share=0) == ("ok", [])


def test_three_rounds_in_order_are_no_drift(prompt: Path) -> None:
    assert judge([], [level(101, 100, 99)], benchmark(prompt), 0, on_gpu=True, busy_share=0) == ("ok", [])


def test_requests_that_did_not_start_together_are_flagged(prompt: Path) -> None:
    apart = [Round(launch=0, round=3, concurrency=4, start_skew_ms=7.5)]
    status, (reason,) = judge([], [level(100)], benchmark(prompt), 0, on_gpu=True, busy_share=0, rounds=apart)
    assert status == "flagged" and "round 3 at concurrency 4" in reason and "7.5 ms" in reason


def test_a_server_without_times_of_its_own_is_flagged(prompt: Path) -> None:
    untold = level(100).model_copy(update={"server_decode_tok_per_s": None})
    status, (reason,) = judge([], [untold], benchmark(prompt), 0, on_gpu=True, busy_share=0)
    assert status == "flagged" and "nothing confirms" in reason


def test_the_studys_own_limits_decide(prompt: Path) -> None:
    wide = benchmark(prompt, limits=Limits(decode_spread_percent=5))
    assert judge([], [level(96, 100, 100)], wide, 0, on_gpu=True, busy_share=0) == ("ok", [])
