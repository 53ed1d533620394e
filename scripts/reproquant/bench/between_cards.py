"""What is written down of a subject's several cards: their links, and the way that its engine took."""

from __future__ import annotations

from collections.abc import Sequence

from reproquant.bench.measurement import BetweenCards, CardLinks, Pair, Said
from reproquant.engines.between_cards import said
from reproquant.machine import host
from reproquant.machine.links import Links


def between_cards(shown: Sequence[int], found: Links, engine: str, log: str) -> BetweenCards:
    """The links among the cards at these places in NVML's order, and what the engine's log says."""
    return BetweenCards(
        cards=[
            CardLinks(index=index, nvlinks=owned, active=active)
            for index, (owned, active) in enumerate(found.nvlinks)
            if index in shown
        ],
        pairs=[
            Pair(
                first=pair.first,
                second=pair.second,
                nvlinks=pair.nvlinks,
                peer_access=pair.peer_access,
                joined_by=pair.joined_by,
            )
            for pair in found.pairs
            if {pair.first, pair.second} <= set(shown)
        ],
        topology=found.topology,
        said=[
            Said(about=one.about, words=host.without_private_paths(one.words)) for one in said(engine, log)
        ],
    )
