"""What makes a run doubtful: an unsteady speed, a busy machine, a single round."""

from __future__ import annotations

from pathlib import Path

import pytest

from mock_engine import benchmark
from reproquant.bench.checks import judge
from reproquant.bench.measurement import Level
from reproquant.bench.statistics import summarize


@pytest.fixture
def prompt(tmp_path: Path) -> Path:
    return tmp_path / "prompt.txt"


def level(*decode: float, concurrency: int = 1) -> Level:
    steady = summarize([100.0] * len(decode))
    return Level(
        concurrency=concurrency,
        ttft_ms=steady,
        prefill_tok_per_s=steady,
        decode_tok_per_s=summarize(decode),
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
