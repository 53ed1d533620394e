"""Figures from requests whose times are known."""

from __future__ import annotations

from typing import Any

import pytest

from reproquant.bench.measurement import Request, ServerTimes
from reproquant.bench.statistics import levels, measurable, movement, spread, summarize


def request(round: int = 0, concurrency: int = 1, index: int = 0, **changes: Any) -> Request:
    """512 tokens in, 128 out: first after 500 ms, then one every 10 ms."""
    values = {
        "launch": 0,
        "nonce_id": 1,
        "sent_ms": 0.0,
        "first_token_ms": 500.0,
        "last_token_ms": 1770.0,
        "prompt_tokens": 512,
        "completion_tokens": 128,
        "cached_tokens": 0,
    }
    return Request(round=round, concurrency=concurrency, index=index, **{**values, **changes})


def test_the_figures_of_one_request_are_those_worked_out_by_hand() -> None:
    (level,) = levels([request()])
    assert level.ttft_ms.median == 500
    assert level.prefill_tok_per_s.median == pytest.approx(1024)
    assert level.decode_tok_per_s.median == pytest.approx(100)
    assert level.output_tok_per_s.median == pytest.approx(128 / 1.77)


def test_throughput_counts_all_tokens_until_the_last_request_ends() -> None:
    pair = [request(concurrency=2), request(concurrency=2, index=1, last_token_ms=2000.0)]
    (level,) = levels(pair)
    assert level.output_tok_per_s.median == pytest.approx(256 / 2.0)


def test_a_level_gives_median_and_range_over_rounds() -> None:
    slow = request(round=1, last_token_ms=3040.0)
    (level,) = levels([request(), slow, request(round=2)])
    assert level.decode_tok_per_s.rounds == pytest.approx([100, 50, 100])
    assert (level.decode_tok_per_s.median, level.decode_tok_per_s.min) == pytest.approx((100, 50))


def test_a_round_with_a_broken_or_missing_request_gives_no_figure() -> None:
    broken = request(concurrency=2, index=1, error="cut")
    assert levels([request(concurrency=2), broken]) == []
    assert levels([request(concurrency=2)]) == []


@pytest.mark.parametrize(
    "changes", [{"last_token_ms": 500.0}, {"completion_tokens": 1}, {"first_token_ms": None}, {"error": "x"}]
)
def test_a_request_that_decode_cannot_be_timed_on_is_not_measurable(changes: dict[str, Any]) -> None:
    assert measurable(request()) and not measurable(request(**changes))


def test_spread_is_the_range_over_the_median() -> None:
    assert spread(summarize([95, 100, 110])) == pytest.approx(0.15)


def test_a_series_moves_until_its_last_values_agree_or_it_swings_about_the_same_median() -> None:
    warming = [10, 20, 30, 40, 50, 60]
    assert movement(warming, 3) == pytest.approx(20 / 50)
    assert movement(warming[:5], 3) == pytest.approx(20 / 40)
    swinging = [1, 49, 50, 38, 51, 50]
    assert movement(swinging[:5], 3) == pytest.approx(13 / 50)
    assert movement(swinging, 3) == pytest.approx(1 / 49)
    assert movement([1, 2, 3, 100, 101, 100], 3) == pytest.approx(0.01)


def test_tokens_that_came_with_the_first_chunk_took_no_time_of_the_decode() -> None:
    (level,) = levels([request(first_chunk_tokens=4, first_token_ms=530.0)])
    assert level.decode_tok_per_s.median == pytest.approx(100)


def test_prefill_is_taken_from_the_server_where_it_tells_its_times() -> None:
    times = ServerTimes(prefill_ms=256, decode_ms=1000)
    (level,) = levels([request(server=times), request(round=1, server=times)])
    assert (level.prefill_from, level.prefill_tok_per_s.median) == ("server", pytest.approx(2000))
    assert level.server_decode_tok_per_s and level.server_decode_tok_per_s.median == pytest.approx(127)
    assert level.ttft_ms.median == 500


def test_one_request_without_the_servers_times_leaves_the_level_to_the_client() -> None:
    (level,) = levels([request(server=ServerTimes(prefill_ms=256, decode_ms=1000)), request(round=1)])
    assert (level.prefill_from, level.server_prefill_ms) == ("client", None)
