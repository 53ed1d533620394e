"""A subject's several cards side by side: what each did, its links, and the way that the engine took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reproquant.bench.measurement import Measurement
from reproquant.engines.between_cards import PREFIXES
from reproquant.provenance.lineage import pointer
from reproquant.report.efficiency import Efficiency
from reproquant.report.numbers import Number, Numbers, Quote
from reproquant.report.sentences import Sentence, say


@dataclass(frozen=True)
class Card:
    """One card: its NVLinks, those of them that are on, and its figures, by ``efficiency.CARD_FIGURES``."""

    index: Number
    nvlinks: Number
    active: Number
    figures: dict[str, Number]

    @property
    def idle(self) -> bool:
        """Whether its median load is nothing: it stood still in at least half of the rounds' samples."""
        load = self.figures.get("utilization_percent")
        return load is not None and load.value == 0


@dataclass(frozen=True)
class Pair:
    """Two cards: NVLinks that join them, peer access, what joins them in the PCIe tree; None is unknown."""

    first: Number
    second: Number
    nvlinks: Number
    peer_access: Quote | None
    joined_by: Quote | None


@dataclass(frozen=True)
class BetweenCards:
    """``said`` are the engine's words, each behind what it tells; ``variables`` those that were handed on.

    ``nccl`` says which NCCL llama.cpp was built with; None for vLLM, which brings its own.
    """

    cards: tuple[Card, ...]
    pairs: tuple[Pair, ...]
    topology: Quote | None
    said: tuple[tuple[Quote, Quote], ...]
    variables: tuple[tuple[str, Quote], ...]
    nccl: Sentence | None


def read_between_cards(
    numbers: Numbers, path: str, name: str, measurement: Measurement, efficiency: Efficiency | None
) -> BetweenCards | None:
    """What the measurement at ``path`` says of the subject's several cards; None if it had fewer."""
    found = measurement.between_cards
    if found is None:
        return None

    def quote(*place: str | int) -> Quote:
        return numbers.quote(path, pointer("between_cards", *place))

    told = efficiency.cards if efficiency else ()
    watched = {card.index.value: card.figures for card in told if card.used.text == "yes"}
    return BetweenCards(
        cards=tuple(
            _card(numbers, path, f"{name}.gpu{card.index}", place, watched.get(card.index, {}))
            for place, card in enumerate(found.cards)
        ),
        pairs=tuple(_pair(numbers, path, name, measurement, place) for place in range(len(found.pairs))),
        topology=None if found.topology is None else quote("topology"),
        said=tuple((quote("said", n, "about"), quote("said", n, "words")) for n in range(len(found.said))),
        variables=tuple(_variables(numbers, path, measurement)),
        nccl=_nccl(numbers, path, measurement),
    )


def _card(numbers: Numbers, path: str, prefix: str, place: int, figures: dict[str, Number]) -> Card:
    def take(key: str, id: str) -> Number:
        return numbers.take(path, pointer("between_cards", "cards", place, key), "", f"{prefix}.{id}")

    return Card(
        index=take("index", "place"),
        nvlinks=take("nvlinks", "nvlinks"),
        active=take("active", "active_nvlinks"),
        figures=figures,
    )


def _pair(numbers: Numbers, path: str, name: str, measurement: Measurement, place: int) -> Pair:
    assert measurement.between_cards is not None
    pair = measurement.between_cards.pairs[place]

    def at(key: str) -> str:
        return pointer("between_cards", "pairs", place, key)

    def take(key: str) -> Number:
        return numbers.take(path, at(key), "", f"{name}.gpu{pair.first}-gpu{pair.second}.{key}")

    return Pair(
        first=take("first"),
        second=take("second"),
        nvlinks=take("nvlinks"),
        peer_access=None if pair.peer_access is None else numbers.quote(path, at("peer_access")),
        joined_by=None if pair.joined_by is None else numbers.quote(path, at("joined_by")),
    )


def _variables(numbers: Numbers, path: str, measurement: Measurement) -> Iterator[tuple[str, Quote]]:
    for variable in measurement.environment_variables:
        if variable.startswith(PREFIXES):
            yield variable, numbers.quote(path, pointer("environment_variables", variable))


def _nccl(numbers: Numbers, path: str, measurement: Measurement) -> Sentence | None:
    cuda = measurement.engine_facts.get("cuda")
    if measurement.engine != "llama_cpp" or not isinstance(cuda, dict):
        return None
    if cuda.get("nccl") is None:
        return say("no NCCL: CMake found none")
    return say("NCCL {}", numbers.quote(path, pointer("engine_facts", "cuda", "nccl")))
