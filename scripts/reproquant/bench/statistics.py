"""From requests to figures: a value for each round, then median, minimum and maximum over rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import median

from reproquant.bench.measurement import Level, Request, Summary

Round = Sequence[Request]


def summarize(values: Sequence[float]) -> Summary:
    """Median with its range; ``values`` holds one figure a round and isn't empty."""
    return Summary(median=median(values), min=min(values), max=max(values), rounds=list(values))


def spread(summary: Summary) -> float:
    """(max - min) / median."""
    return (summary.max - summary.min) / summary.median


def levels(requests: Iterable[Request]) -> list[Level]:
    """The figures of each concurrency that has a round in which every request is measurable."""
    by_concurrency: dict[int, list[Round]] = {}
    key = _round_of
    for (concurrency, *_), members in groupby(sorted(requests, key=key), key):
        together = list(members)
        if len(together) == concurrency and all(map(measurable, together)):
            by_concurrency.setdefault(concurrency, []).append(together)
    return [_level(concurrency, rounds) for concurrency, rounds in sorted(by_concurrency.items())]


def measurable(request: Request) -> bool:
    """Whether a request ended well and its tokens came over a time that can be divided by."""
    return (
        request.error is None
        and request.first_token_ms is not None
        and request.last_token_ms is not None
        and request.last_token_ms > request.first_token_ms > request.sent_ms
        and request.prompt_tokens is not None
        and (request.completion_tokens or 0) > 1
    )


def _round_of(request: Request) -> tuple[int, int, int]:
    return request.concurrency, request.launch, request.round


def _level(concurrency: int, rounds: Sequence[Round]) -> Level:
    return Level(
        concurrency=concurrency,
        ttft_ms=summarize([median(map(_ttft_ms, round_)) for round_ in rounds]),
        prefill_tok_per_s=summarize([median(map(_prefill, round_)) for round_ in rounds]),
        decode_tok_per_s=summarize([median(map(_decode, round_)) for round_ in rounds]),
        output_tok_per_s=summarize([_output(round_) for round_ in rounds]),
    )


def _ttft_ms(request: Request) -> float:
    assert request.first_token_ms is not None
    return request.first_token_ms - request.sent_ms


def _prefill(request: Request) -> float:
    assert request.prompt_tokens is not None
    return 1000 * request.prompt_tokens / _ttft_ms(request)


def _decode(request: Request) -> float:
    """The first token comes out of the prefill, so n tokens are n - 1 decode steps."""
    assert request.first_token_ms is not None and request.last_token_ms is not None
    assert request.completion_tokens is not None
    return 1000 * (request.completion_tokens - 1) / (request.last_token_ms - request.first_token_ms)


def _output(round_: Round) -> float:
    """Tokens of all requests over the time from their release to the last one's end."""
    return (
        1000
        * sum(request.completion_tokens or 0 for request in round_)
        / max(request.last_token_ms or 0 for request in round_)
    )
