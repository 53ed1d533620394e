"""The status of a run, with a sentence for each reason why it can't be trusted as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from reproquant.bench.measurement import Check, Level, Request, Round, Status
from reproquant.bench.statistics import drift, measurable, spread
from reproquant.study import Benchmark, Limits


@dataclass
class Findings:
    """Sentences about the circumstances of a run: what rejects it, makes it unsteady, makes it doubtful."""

    wrong: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)


def judge(
    requests: Sequence[Request],
    found: Sequence[Level],
    benchmark: Benchmark,
    cache_hits: float | None,
    on_gpu: bool,
    busy_share: float,
    checks: Sequence[Check] = (),
    rounds: Sequence[Round] = (),
    doubts: Sequence[str] = (),
    warmup: Sequence[Request] = (),
    preemptions: float = 0,
    seen: Findings = Findings(),
) -> tuple[Status, list[str]]:
    """The status of a finished run and a sentence for each reason why it isn't ok.

    ``cache_hits`` is how much the server's own counter of cached tokens grew,
    null if it has none; ``preemptions`` how often it put a request off half-way.
    Wrong counts, a cache hit, a preemption, a broken request or paths that
    contradict each other reject; an unsteady run is ``unstable`` on a GPU
    and ``flagged`` on a CPU. ``doubts`` are reasons to flag that the run brought,
    ``seen`` is what the circumstances gave. Warm-up requests are held to the same
    counts; only their speed is nobody's business.
    """
    limits = benchmark.limits
    wrong = [
        *_count_reasons("Warm-up request", warmup, benchmark),
        *_count_reasons("Request", requests, benchmark),
        *_untimed_reasons(requests),
        *_cache_reasons("Warm-up request", warmup),
        *_cache_reasons("Request", requests),
        *_counter_reasons(cache_hits, preemptions),
        *(check.reason for check in checks if check.verdict == "rejected" and check.reason),
        *seen.wrong,
    ]
    if wrong:
        return "rejected", wrong
    unsteady = [*unsteady_reasons(found, limits), *seen.unsteady]
    weak = [
        *doubts,
        *seen.weak,
        *(check.reason for check in checks if check.verdict == "flagged" and check.reason),
        *_skew_reasons(rounds, limits),
    ]
    if cache_hits is None and any(request.cached_tokens is None for request in (*warmup, *requests)):
        weak.append("The server doesn't tell how many prompt tokens it took from a cache.")
    if any(level.server_decode_tok_per_s is None for level in found):
        weak.append("The server tells no times of its own, so nothing confirms the client's.")
    if benchmark.rounds < 2:
        weak.append("There was one round, so nothing is known about the spread.")
    if 100 * busy_share > limits.busy_percent and not on_gpu:
        weak.append(f"Just before the server started, other programs kept the cores {busy_share:.0%} busy.")
    if unsteady and on_gpu:
        return "unstable", unsteady + weak
    return ("flagged" if unsteady or weak else "ok"), unsteady + weak


def unsteady_reasons(found: Sequence[Level], limits: Limits) -> list[str]:
    """A sentence for each figure whose rounds differ too much, or only ever rise or fall."""
    return [
        reason
        for level in found
        for reason in (*_spread_reasons(level, limits), *_drift_reasons(level, limits))
    ]


def _count_reasons(kind: str, requests: Sequence[Request], benchmark: Benchmark) -> Iterator[str]:
    for request in requests:
        counts = (request.prompt_tokens, request.completion_tokens)
        if request.error:
            yield f"{kind} {_place(request)} broke: {request.error}"
        elif counts != (benchmark.prompt_tokens, benchmark.output_tokens):
            yield (
                f"{kind} {_place(request)} had {counts[0]} prompt and {counts[1]} output tokens instead of "
                f"{benchmark.prompt_tokens} and {benchmark.output_tokens}."
            )


def _untimed_reasons(requests: Sequence[Request]) -> Iterator[str]:
    for request in requests:
        if request.error is None and not measurable(request):
            yield f"Request {_place(request)} brought all tokens in one chunk: decoding could not be timed."


def _cache_reasons(kind: str, requests: Sequence[Request]) -> Iterator[str]:
    for request in requests:
        if request.cached_tokens:
            yield f"{kind} {_place(request)} took {request.cached_tokens} prompt tokens from a cache."


def _counter_reasons(hits: float | None, preemptions: float) -> Iterator[str]:
    if hits:
        yield f"The server's counter of cache hits grew by {hits:g} during the measurement."
    if preemptions:
        yield f"The server had no room for all contexts and put requests off: it counted {preemptions:g}."


def _spread_reasons(level: Level, limits: Limits) -> Iterator[str]:
    """Alone, a request's own speeds must be steady; together, what the server gives all of them.

    Which of several requests is served first is a race, so their own speeds
    differ between rounds of a steady server.
    """
    alone = (
        ("decode speed", level.decode_tok_per_s, limits.decode_spread_percent),
        ("prefill speed", level.prefill_tok_per_s, limits.prefill_spread_percent),
    )
    together = (("output throughput", level.output_tok_per_s, limits.output_spread_percent),)
    for what, summary, limit in alone if level.concurrency == 1 else together:
        if 100 * spread(summary) > limit:
            yield (
                f"At concurrency {level.concurrency} the rounds' {what} differs by {spread(summary):.1%} "
                f"of its median; {limit:g}% is steady."
            )


def _drift_reasons(level: Level, limits: Limits) -> Iterator[str]:
    summary = level.decode_tok_per_s if level.concurrency == 1 else level.output_tok_per_s
    if 100 * drift(summary) > limits.drift_percent:
        what = "decode speed" if level.concurrency == 1 else "output throughput"
        way = "rose" if summary.rounds[-1] > summary.rounds[0] else "fell"
        yield (
            f"At concurrency {level.concurrency} the {what} {way} from round to round, by "
            f"{drift(summary):.1%} in all; {limits.drift_percent:g}% is steady."
        )


def _skew_reasons(rounds: Sequence[Round], limits: Limits) -> Iterator[str]:
    for one in rounds:
        if one.start_skew_ms > limits.start_skew_ms:
            yield (
                f"In round {one.round} at concurrency {one.concurrency} the last request left "
                f"{one.start_skew_ms:.1f} ms after the first; {limits.start_skew_ms:g} ms is together."
            )


def _place(request: Request) -> str:
    return f"{request.index} of round {request.round} at concurrency {request.concurrency}"
