"""What a subject made of its hardware: its part of the ceiling, its memory, its energy, each card's load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reproquant.bench.measurement import Measurement
from reproquant.provenance.lineage import pointer
from reproquant.report.numbers import Number, Numbers, Quote

CARD_FIGURES = {
    "peak_bytes": "B",
    "temperature_c": "°C",
    "sm_mhz": "MHz",
    "power_w": "W",
    "utilization_percent": "%",
}


@dataclass(frozen=True)
class Top:
    """The ceiling of one request's decode with all that it was computed from; None is what isn't known."""

    share: Number | None
    decode: Number | None
    simple: Number | None
    streamed: Number
    weights: Number
    unread: Number
    cache: Number
    context: Number
    memories: Number
    by_study: Number | None
    measured: Number | None
    how: Quote | None
    note: Quote | None


@dataclass(frozen=True)
class Cost:
    """Tokens per joule at one concurrency, and the window that it was counted over."""

    concurrency: Number
    tokens_per_joule: Number
    joules: Number
    seconds: Number
    of: Quote
    source: Quote


@dataclass(frozen=True)
class Card:
    """One GPU of the host; ``figures`` has those of ``CARD_FIGURES`` that it told."""

    index: Number
    used: Quote
    figures: dict[str, Number]


@dataclass(frozen=True)
class Efficiency:
    """All of it. ``memory`` is what the subject's cards held at most, on a CPU the server's processes."""

    top: Top | None
    memory: Number | None
    costs: tuple[Cost, ...]
    cards: tuple[Card, ...]
    missing: tuple[tuple[str, Quote], ...]

    def cost_at(self, concurrency: Number) -> Cost | None:
        """The energy at that many requests at once."""
        return next((one for one in self.costs if one.concurrency.value == concurrency.value), None)

    def data(self) -> dict[str, Any]:
        """The figures in report.json, by id."""
        top = self.top
        return {
            "share_of_ceiling_percent": top.share.id if top and top.share else None,
            "ceiling_tok_per_s": top.decode.id if top and top.decode else None,
            "peak_memory_bytes": self.memory.id if self.memory else None,
            "tokens_per_joule": {str(one.concurrency.value): one.tokens_per_joule.id for one in self.costs},
        }


def read_efficiency(numbers: Numbers, path: str, name: str, measurement: Measurement) -> Efficiency | None:
    """What the measurement at ``path`` says of the subject ``name``; None if nothing was measured."""
    watched = measurement.watched
    if watched is None or not measurement.levels:
        return None
    cards = tuple(_card(numbers, path, name, measurement, place) for place in range(len(watched.cards)))
    missing = tuple(
        (key, numbers.quote(path, pointer("watched", "not_measured", key))) for key in watched.not_measured
    )
    costs = tuple(_cost(numbers, path, name, place) for place in range(len(measurement.energy)))
    top = _top(numbers, path, name, measurement) if measurement.ceiling else None
    return Efficiency(top, _memory(numbers, path, name, measurement, cards), costs, cards, missing)


def _top(numbers: Numbers, path: str, name: str, measurement: Measurement) -> Top:
    found = measurement.ceiling
    assert found is not None

    def take(key: str, unit: str) -> Number:
        return numbers.take(path, f"/ceiling/{key}", unit, f"{name}.ceiling.{key.replace('/', '.')}")

    def maybe(key: str, unit: str) -> Number | None:
        return take(key, unit) if getattr(found, key) is not None else None

    return Top(
        share=maybe("share_percent", "%"),
        decode=maybe("decode_tok_per_s", "tok/s"),
        simple=maybe("simple_tok_per_s", "tok/s"),
        streamed=take("streamed_bytes", "B"),
        weights=take("weight_bytes", "B"),
        unread=take("unread_bytes", "B"),
        cache=take("kv_bytes", "B"),
        context=take("context_tokens", "tokens"),
        memories=take("memories", ""),
        by_study=maybe("study_gb_per_s", "GB/s"),
        measured=take("measured/gb_per_s", "GB/s") if found.measured else None,
        how=numbers.quote(path, "/ceiling/measured/how") if found.measured else None,
        note=numbers.quote(path, "/ceiling/note") if found.note else None,
    )


def _memory(
    numbers: Numbers, path: str, name: str, measurement: Measurement, cards: tuple[Card, ...]
) -> Number | None:
    if measurement.hardware == "gpu":
        used = [
            card.figures["peak_bytes"]
            for card in cards
            if card.used.text == "yes" and "peak_bytes" in card.figures
        ]
        return numbers.derive("sum", used, "B", f"{name}.peak_gpu_bytes") if used else None
    if measurement.peak_rss_bytes is None:
        return None
    return numbers.take(path, "/peak_rss_bytes", "B", f"{name}.peak_rss_bytes")


def _cost(numbers: Numbers, path: str, name: str, place: int) -> Cost:
    def take(key: str, unit: str) -> Number:
        return numbers.take(path, pointer("energy", place, key), unit, f"{name}.energy.{place}.{key}")

    return Cost(
        concurrency=take("concurrency", ""),
        tokens_per_joule=take("tokens_per_joule", "tok/J"),
        joules=take("joules", "J"),
        seconds=take("seconds", "s"),
        of=numbers.quote(path, pointer("energy", place, "of")),
        source=numbers.quote(path, pointer("energy", place, "source")),
    )


def _card(numbers: Numbers, path: str, name: str, measurement: Measurement, place: int) -> Card:
    assert measurement.watched is not None
    card = measurement.watched.cards[place]

    def take(key: str, unit: str) -> Number:
        return numbers.take(
            path, pointer("watched", "cards", place, key), unit, f"{name}.gpu{card.index}.{key}"
        )

    return Card(
        index=take("index", ""),
        used=numbers.quote(path, pointer("watched", "cards", place, "used")),
        figures={
            key: take(key, unit) for key, unit in CARD_FIGURES.items() if getattr(card, key) is not None
        },
    )
