"""The status of a run, with a sentence for each reason why it can't be trusted as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reproquant.bench.measurement import Level, Request, Status
from reproquant.bench.statistics import measurable, spread
from reproquant.study import Benchmark

BUSY_LIMIT = 0.2
DECODE_SPREAD, OUTPUT_SPREAD, PREFILL_SPREAD = 0.03, 0.05, 0.08


def judge(
    requests: Sequence[Request],
    found: Sequence[Level],
    benchmark: Benchmark,
    cache_hits: float | None,
    on_gpu: bool,
    busy_share: float,
) -> tuple[Status, list[str]]:
    """The status of a finished run and a sentence for each reason why it isn't ok.

    ``cache_hits`` is how much the server's own counter of cached tokens grew,
    null if it has none. Wrong counts, a cache hit or a broken request reject;
    an unsteady run is ``unstable`` on a GPU and ``flagged`` on a CPU.
    """
    if wrong := [*_count_reasons(requests, benchmark), *_cache_reasons(requests, cache_hits)]:
        return "rejected", wrong
    unsteady = [reason for level in found for reason in _spread_reasons(level)]
    doubts = []
    if cache_hits is None and any(request.cached_tokens is None for request in requests):
        doubts.append("The server doesn't tell how many prompt tokens it took from a cache.")
    if benchmark.rounds < 2:
        doubts.append("There was one round, so nothing is known about the spread.")
    if busy_share > BUSY_LIMIT and not on_gpu:
        doubts.append(f"Just before the server started, other programs kept the cores {busy_share:.0%} busy.")
    if unsteady and on_gpu:
        return "unstable", unsteady + doubts
    return ("flagged" if unsteady or doubts else "ok"), unsteady + doubts


def _count_reasons(requests: Sequence[Request], benchmark: Benchmark) -> Iterator[str]:
    for request in requests:
        counts = (request.prompt_tokens, request.completion_tokens)
        if request.error:
            yield f"{_name(request)} broke: {request.error}"
        elif counts != (benchmark.prompt_tokens, benchmark.output_tokens):
            yield (
                f"{_name(request)} had {counts[0]} prompt and {counts[1]} output tokens instead of "
                f"{benchmark.prompt_tokens} and {benchmark.output_tokens}."
            )
        elif not measurable(request):
            yield f"{_name(request)} brought all its tokens in one chunk, so decoding could not be timed."


def _cache_reasons(requests: Sequence[Request], hits: float | None) -> Iterator[str]:
    for request in requests:
        if request.cached_tokens:
            yield f"{_name(request)} took {request.cached_tokens} prompt tokens from a cache."
    if hits:
        yield f"The server's counter of cache hits grew by {hits:g} during the measurement."


def _spread_reasons(level: Level) -> Iterator[str]:
    """Alone, a request's own speeds must be steady; together, what the server gives all of them.

    Which of several requests is served first is a race, so their own speeds
    differ between rounds of a steady server.
    """
    alone = (
        ("decode speed", level.decode_tok_per_s, DECODE_SPREAD),
        ("prefill speed", level.prefill_tok_per_s, PREFILL_SPREAD),
    )
    together = (("output throughput", level.output_tok_per_s, OUTPUT_SPREAD),)
    gates = alone if level.concurrency == 1 else together
    for what, summary, limit in gates:
        if spread(summary) > limit:
            yield (
                f"At concurrency {level.concurrency} the rounds' {what} differs by {spread(summary):.1%} "
                f"of its median; {limit:.0%} is steady."
            )


def _name(request: Request) -> str:
    return f"Request {request.index} of round {request.round} at concurrency {request.concurrency}"
