"""The ceiling of decoding, and decodes that can't be true."""

from __future__ import annotations

from pathlib import Path

import pytest

from mock_engine import benchmark as mock_benchmark
from reproquant.bench.ceiling import ceiling
from reproquant.bench.measurement import Bandwidth, Ceiling, Level
from reproquant.bench.statistics import summarize
from reproquant.engines.streamed import Streamed
from reproquant.study import Benchmark, Limits

FP16 = Streamed(weights=14_140_000_000 - 576 * 57_344, unread=1_090_000_000, kv_per_token=57_344, memories=1)


@pytest.fixture
def benchmark(tmp_path: Path) -> Benchmark:
    return mock_benchmark(tmp_path / "prompt", prompt_tokens=512, output_tokens=128, limits=Limits())


def level(decode: float, concurrency: int = 1) -> Level:
    figures = summarize([decode])
    return Level(
        concurrency=concurrency, ttft_ms=figures, prefill_tok_per_s=figures, decode_tok_per_s=figures,
        output_tok_per_s=figures,
    )  # fmt: skip


def measured(gb_per_s: float, cache_bytes: int | None = None) -> Bandwidth:
    return Bandwidth(gb_per_s=gb_per_s, how="copy", array_bytes=1 << 30, cache_bytes=cache_bytes)


def of(
    decode: float,
    benchmark: Benchmark,
    streamed: Streamed = FP16,
    study: float | None = 900,
    found: Bandwidth | None = None,
) -> tuple[Ceiling, str | None]:
    return ceiling(streamed, 15_230_000_000, [level(decode)], benchmark, study, found, "no tool")


def test_a_v100s_ceiling_and_the_articles_formula_are_the_known_ones(benchmark: Benchmark) -> None:
    """900 GB/s: 63 tok/s over 14.14 GB a token, and 59 by the file's size."""
    found, reason = of(50, benchmark)
    assert found.decode_tok_per_s == pytest.approx(63.6, abs=0.1)
    assert found.simple_tok_per_s == pytest.approx(59.1, abs=0.1)
    assert found.share_percent == pytest.approx(78.6, abs=0.1)
    assert (found.context_tokens, found.kv_bytes, reason) == (576, 33_030_144, None)


def test_tensor_parallel_cards_add_their_bandwidth(benchmark: Benchmark) -> None:
    two, _ = of(100, benchmark, Streamed(**{**vars(FP16), "memories": 2}))
    one, _ = of(100, benchmark)
    assert two.decode_tok_per_s == pytest.approx(2 * (one.decode_tok_per_s or 0))


@pytest.mark.parametrize(("decode", "possible"), [(63, True), (66.5, True), (67, False), (120, False)])
def test_a_decode_above_the_ceiling_and_its_tolerance_is_impossible(
    decode: float, possible: bool, benchmark: Benchmark
) -> None:
    reason = of(decode, benchmark)[1]
    assert (reason is None) is possible
    if reason:
        assert "That is impossible" in reason and "1 x 900 GB/s" in reason


def test_the_larger_bandwidth_counts(benchmark: Benchmark) -> None:
    assert of(67, benchmark, found=measured(700))[1] is not None
    faster, reason = of(67, benchmark, found=measured(1000))
    assert reason is None and faster.decode_tok_per_s == pytest.approx(1e12 / 14.14e9)


def test_what_a_cache_can_hold_need_not_be_read_again(benchmark: Benchmark) -> None:
    small = Streamed(weights=100_000_000, unread=0, kv_per_token=0, memories=1)
    found, reason = of(200, benchmark, small, study=None, found=measured(10, cache_bytes=60_000_000))
    assert reason is None and found.share_percent == pytest.approx(200)
    assert found.note and "60 MB of cache" in found.note
    assert of(200, benchmark, small, study=None, found=measured(10, cache_bytes=40_000_000))[1] is not None
    assert of(200, benchmark, small, study=None, found=measured(10, cache_bytes=400_000_000))[1] is None


def test_without_a_bandwidth_or_a_lone_request_there_is_no_share_and_a_note(benchmark: Benchmark) -> None:
    unknown, _ = of(60, benchmark, study=None)
    assert (unknown.decode_tok_per_s, unknown.share_percent, unknown.note) == (None, None, "no tool")
    several, reason = ceiling(FP16, 1, [level(900, concurrency=4)], benchmark, 900, None, None)
    assert (several.share_percent, reason) == (None, None)
    assert several.note and "one request alone wasn't measured" in several.note
