"""The rounds behind a measurement's figures, and the requests of each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reproquant.bench.measurement import Request
from reproquant.bench.statistics import measurable


@dataclass(frozen=True)
class Round:
    """A round that could be measured whole; ``requests`` are the places of its requests in the file."""

    title: str
    requests: tuple[int, ...]


@dataclass(frozen=True)
class Level:
    """One concurrency: its rounds, and of each metric that has a value for every round these values."""

    rounds: tuple[Round, ...]
    values: dict[str, list[float]]


def levels(measurement: dict[str, Any]) -> tuple[Level, ...]:
    """The levels of a measurement's JSON data, in the order in which they stand there."""
    return tuple(_level(measurement["requests"], level) for level in measurement["levels"])


def behind(values: Sequence[float], figure: str) -> list[int]:
    """The places of the rounds that give the median (one, or the middle two), ``min`` or ``max``."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    match figure:
        case "min":
            return order[:1]
        case "max":
            return order[-1:]
    return order[(len(order) - 1) // 2 : len(order) // 2 + 1]


def _level(requests: list[dict[str, Any]], level: dict[str, Any]) -> Level:
    rounds = _rounds(requests, level["concurrency"])
    values = {metric: figure["rounds"] for metric, figure in level.items() if isinstance(figure, dict)}
    return Level(rounds, {metric: each for metric, each in values.items() if len(each) == len(rounds)})


def _rounds(requests: list[dict[str, Any]], concurrency: int) -> tuple[Round, ...]:
    """Only rounds that can be measured whole have figures."""
    rounds: dict[tuple[int, int], list[int]] = {}
    for place, request in enumerate(requests):
        if request["concurrency"] == concurrency:
            rounds.setdefault((request["launch"], request["round"]), []).append(place)
    return tuple(
        Round(f"round {number} at concurrency {concurrency}", tuple(places))
        for (_, number), places in sorted(rounds.items())
        if len(places) == concurrency
        and all(measurable(Request.model_validate(requests[place])) for place in places)
    )
