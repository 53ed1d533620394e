"""Do the paths agree? Native tool (A), client (B) and server (C), pair by pair.

A: the engine's own benchmark tool. B: what the measuring client saw. C: what
the server's clock and counters say. Each figure that can be had twice is
compared; the limits are the study's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from reproquant.bench.measurement import Check, Level, Native, Request, Round
from reproquant.study import Limits

CLIENT = "client"
SERVER = "server's clock"
COUNTER = "server's counter"
USAGE = "usage of the answers"


def cross_checks(
    found: Sequence[Level],
    requests: Sequence[Request],
    rounds: Sequence[Round],
    native: Native | None,
    limits: Limits,
) -> list[Check]:
    """Every pair that there is, level by level, the lowest concurrency first."""
    own_times = all(request.server is None or request.server.mean_of == 1 for request in requests)
    checks: list[Check] = []
    for level in found:
        alone = level.concurrency == 1
        if alone or own_times:
            checks += _decode_by_server(level, limits)
        if alone:
            checks += _first_token(level, limits)
            checks += _decode_by_native(level, native, limits)
        checks += _tokens(level.concurrency, requests, rounds)
    return checks


def _decode_by_server(level: Level, limits: Limits) -> Iterator[Check]:
    if level.server_decode_tok_per_s:
        yield _rates(
            level, SERVER, level.server_decode_tok_per_s.median,
            limits.decode_server_percent, limits.decode_server_flag_percent,
        )  # fmt: skip


def _decode_by_native(level: Level, native: Native | None, limits: Limits) -> Iterator[Check]:
    """Serving takes time that a tool doesn't: a slower client is believed if the server's clock agrees."""
    if native:
        told = level.server_decode_tok_per_s
        slower = level.decode_tok_per_s.median < native.decode_tok_per_s.median
        confirmed = (
            told and abs(_percent(level.decode_tok_per_s.median, told.median)) <= limits.decode_server_percent
        )
        yield _rates(
            level, native.tool, native.decode_tok_per_s.median,
            limits.decode_native_percent, None if slower and confirmed else limits.decode_native_flag_percent,
        )  # fmt: skip


def _rates(
    level: Level, right_of: str, right: float, ok_within: float, flagged_within: float | None
) -> Check:
    left = level.decode_tok_per_s.median
    difference = _percent(left, right)
    verdict = _verdict(abs(difference), ok_within, flagged_within)
    most = (
        f"and {flagged_within:g}% the most."
        if flagged_within is not None
        else f"and the {SERVER} confirms the {CLIENT}'s: serving takes time that the tool doesn't spend."
    )
    reason = (
        f"At concurrency {level.concurrency} decode is {left:.4g} tok/s by the {CLIENT} and {right:.4g} by "
        f"the {right_of}: {difference:+.1f}%; {ok_within:g}% is well {most}"
    )
    return Check(
        what="decode", concurrency=level.concurrency, left_of=CLIENT, left=left, right_of=right_of,
        right=right, unit="tok/s", difference=difference, difference_unit="%", ok_within=ok_within,
        flagged_within=flagged_within, verdict=verdict, reason=None if verdict == "ok" else reason,
    )  # fmt: skip


def _first_token(level: Level, limits: Limits) -> Iterator[Check]:
    """The first chunk can't come before the prefill's end, and should come soon after it."""
    if level.server_prefill_ms is None:
        return
    left, right = level.ttft_ms.median, level.server_prefill_ms.median
    over = left - right
    ok_within = max(limits.ttft_over_prefill_ms, right * limits.ttft_over_prefill_percent / 100)
    verdict: Literal["ok", "flagged", "rejected"] = (
        "rejected" if over < 0 else "flagged" if over > ok_within else "ok"
    )
    late = (
        f"The first token reached the client {over:.1f} ms after the server had it; {ok_within:.1f} ms is "
        "well. The prefill speed is taken from the server's clock."
    )
    early = (
        f"The first token reached the client {-over:.1f} ms before the server says that it was there: "
        "one of the two clocks is wrong."
    )
    yield Check(
        what="first token and prefill", concurrency=level.concurrency, left_of=CLIENT, left=left,
        right_of=SERVER, right=right, unit="ms", difference=over, difference_unit="ms", ok_within=ok_within,
        flagged_within=None, verdict=verdict,
        reason={"ok": None, "flagged": late, "rejected": early}[verdict],
    )  # fmt: skip


def _tokens(concurrency: int, requests: Sequence[Request], rounds: Sequence[Round]) -> Iterator[Check]:
    """All output tokens of a level by the answers' usage and by the server's own counter."""
    counted = [one.counted_tokens for one in rounds if one.concurrency == concurrency]
    if not counted or None in counted:
        return
    left = sum(one.completion_tokens or 0 for one in requests if one.concurrency == concurrency)
    right = sum(count or 0 for count in counted)
    reason = (
        f"At concurrency {concurrency} the answers' usage adds up to {left} output tokens and the server "
        f"counted {right}."
    )
    yield Check(
        what="output tokens", concurrency=concurrency, left_of=USAGE, left=left, right_of=COUNTER,
        right=right, unit="tokens", difference=left - right, difference_unit="tokens", ok_within=0,
        flagged_within=0, verdict="ok" if left == right else "rejected",
        reason=None if left == right else reason,
    )  # fmt: skip


def _percent(left: float, right: float) -> float:
    """The difference of two figures in percent of the right one."""
    return 100 * (left - right) / right


def _verdict(
    size: float, ok_within: float, flagged_within: float | None
) -> Literal["ok", "flagged", "rejected"]:
    if size <= ok_within:
        return "ok"
    return "flagged" if flagged_within is None or size <= flagged_within else "rejected"
