"""From requests to figures: a value for each round, then median, minimum and maximum over rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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


def movement(values: Sequence[float], size: int) -> float:
    """How far a series still moves, as a part of its speed: by its last ``size`` values.

    Their spread or, if it is smaller, how far their median lies from that of as many values before them,
    where there are as many. The latter is for a server that is warm and swings: it no longer gets faster,
    and how much it swings is for the rounds to tell.
    """
    before, newest = values[-2 * size : -size], values[-size:]
    found = spread(summarize(newest))
    return min(found, abs(median(newest) / median(before) - 1)) if len(before) == size else found


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
        and (request.completion_tokens or 0) > request.first_chunk_tokens
    )


def drift(summary: Summary) -> float:
    """First to last round over the median, if every round lies beyond the one before, else 0.

    Below four rounds always 0: three are in order by chance one time in three.
    """
    rounds = summary.rounds
    ordered = rounds in (sorted(rounds), sorted(rounds, reverse=True))
    return abs(rounds[-1] - rounds[0]) / summary.median if ordered and len(rounds) >= 4 else 0.0


def _round_of(request: Request) -> tuple[int, int, int]:
    return request.concurrency, request.launch, request.round


def _level(concurrency: int, rounds: Sequence[Round]) -> Level:
    told = all(_timed_by_server(request) for round_ in rounds for request in round_)
    return Level(
        concurrency=concurrency,
        ttft_ms=_medians(ttft_ms, rounds),
        prefill_tok_per_s=_medians(_server_prefill if told else _client_prefill, rounds),
        prefill_from="server" if told else "client",
        server_prefill_ms=_medians(_server_prefill_ms, rounds) if told else None,
        decode_tok_per_s=_medians(decode, rounds),
        server_decode_tok_per_s=_medians(_server_decode, rounds) if told else None,
        output_tok_per_s=summarize([_output(round_) for round_ in rounds]),
    )


def _timed_by_server(request: Request) -> bool:
    """Whether the server told times and, if at all, a count of tokens that can be divided by each other."""
    told = request.server
    return told is not None and told.prefill_ms > 0 and told.decode_ms > 0 and (told.output_tokens or 2) > 1


def _medians(figure: Callable[[Request], float], rounds: Sequence[Round]) -> Summary:
    return summarize([median(map(figure, round_)) for round_ in rounds])


def ttft_ms(request: Request) -> float:
    """From sending a measurable request to its first chunk."""
    assert request.first_token_ms is not None
    return request.first_token_ms - request.sent_ms


def _client_prefill(request: Request) -> float:
    assert request.prompt_tokens is not None
    return 1000 * request.prompt_tokens / ttft_ms(request)


def _server_prefill(request: Request) -> float:
    assert request.prompt_tokens is not None
    return 1000 * request.prompt_tokens / _server_prefill_ms(request)


def decode(request: Request) -> float:
    """Tokens a second between first and last chunk; what came with the first one took no time of it."""
    assert request.first_token_ms is not None and request.last_token_ms is not None
    assert request.completion_tokens is not None
    steps = request.completion_tokens - request.first_chunk_tokens
    return 1000 * steps / (request.last_token_ms - request.first_token_ms)


def _server_prefill_ms(request: Request) -> float:
    assert request.server is not None
    return request.server.prefill_ms


def _server_decode(request: Request) -> float:
    """The first token comes out of the prefill, so n tokens are n - 1 decode steps."""
    assert request.server is not None
    tokens = request.server.output_tokens or request.completion_tokens
    assert tokens is not None
    return 1000 * (tokens - 1) / request.server.decode_ms


def _output(round_: Round) -> float:
    """Tokens of all requests over the time from their release to the last one's end."""
    return (
        1000
        * sum(request.completion_tokens or 0 for request in round_)
        / max(request.last_token_ms or 0 for request in round_)
    )
