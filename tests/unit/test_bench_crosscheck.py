"""Where two paths to a figure agree, differ and contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from reproquant.bench.crosscheck import cross_checks
from reproquant.bench.measurement import Check, Native, Request, Round, ServerTimes
from reproquant.bench.statistics import levels, summarize
from reproquant.study import Limits
from test_bench_statistics import request

HONEST = ServerTimes(prefill_ms=496, decode_ms=1270)


def checks(
    requests: list[Request], rounds: list[Round] | None = None, native: float | None = None
) -> list[Check]:
    tool = native and Native(
        tool="a tool",
        commands=[],
        prefill_tok_per_s=summarize([1024]),
        decode_tok_per_s=summarize([native]),
    )
    return cross_checks(levels(requests), requests, rounds or [], tool or None, Limits())


def told(**changes: Any) -> Request:
    """The request of 100 tok/s whose server says the same, unless changed."""
    return request(server=HONEST.model_copy(update=changes))


@pytest.mark.parametrize(
    ("decode_ms", "verdict"), [(1270.0, "ok"), (1282.0, "ok"), (1300.0, "flagged"), (1230.0, "rejected")]
)
def test_decode_by_client_and_server_may_differ_by_one_percent_and_by_three_with_a_flag(
    decode_ms: float, verdict: str
) -> None:
    check = checks([told(decode_ms=decode_ms)])[0]
    assert (check.what, check.verdict) == ("decode", verdict)
    assert check.left == pytest.approx(100) and check.right == pytest.approx(127_000 / decode_ms)
    assert (check.reason is None) == (verdict == "ok")


@pytest.mark.parametrize(
    ("prefill_ms", "verdict"), [(496.0, "ok"), (456.0, "ok"), (450.0, "flagged"), (501.0, "rejected")]
)
def test_the_first_token_comes_after_the_prefill_and_not_much_later(prefill_ms: float, verdict: str) -> None:
    check = checks([told(prefill_ms=prefill_ms)])[1]
    assert (check.what, check.verdict) == ("first token and prefill", verdict)
    assert check.difference == pytest.approx(500 - prefill_ms)


@pytest.mark.parametrize(("tok_per_s", "verdict"), [(101.0, "ok"), (107.0, "flagged"), (120.0, "rejected")])
def test_decode_by_client_and_native_tool_may_differ_by_three_percent_and_by_ten_with_a_flag(
    tok_per_s: float, verdict: str
) -> None:
    (check,) = checks([request()], native=tok_per_s)
    assert (check.right_of, check.verdict) == ("a tool", verdict)


@pytest.mark.parametrize(("tok_per_s", "verdict"), [(130.0, "flagged"), (80.0, "rejected")])
def test_a_client_slower_than_the_native_tool_is_believed_where_the_servers_clock_agrees(
    tok_per_s: float, verdict: str
) -> None:
    check = next(one for one in checks([told()], native=tok_per_s) if one.right_of == "a tool")
    assert check.verdict == verdict
    assert ("the server's clock confirms" in (check.reason or "")) == (verdict == "flagged")


def test_a_client_slower_than_the_native_tool_is_rejected_where_the_servers_clock_differs() -> None:
    found = checks([told(decode_ms=1300.0)], native=130.0)
    assert next(one.verdict for one in found if one.right_of == "a tool") == "rejected"


def test_tokens_must_be_as_many_as_the_server_counted() -> None:
    beside = Round(launch=0, round=0, concurrency=1, start_skew_ms=0, counted_tokens=128)
    (check,) = checks([request()], [beside])
    assert (check.left, check.right, check.verdict) == (128, 128, "ok")
    (check,) = checks([request()], [beside.model_copy(update={"counted_tokens": 129})])
    assert check.verdict == "rejected" and "128 output tokens and the server counted 129" in (
        check.reason or ""
    )


def test_a_mean_over_several_requests_is_not_compared_with_each_of_them() -> None:
    pair = [request(concurrency=2, index=n, server=HONEST.model_copy(update={"mean_of": 2})) for n in (0, 1)]
    assert checks(pair) == []
    own = [request(concurrency=2, index=n, server=HONEST) for n in (0, 1)]
    assert [check.what for check in checks(own)] == ["decode"]


def test_without_a_second_path_nothing_is_compared() -> None:
    assert checks([request()]) == []


def test_a_server_that_counts_one_token_has_no_decode_to_compare_with() -> None:
    found = levels([told(output_tokens=1)])
    assert found[0].server_decode_tok_per_s is None
    assert checks([told(output_tokens=1)], native=100) != []
