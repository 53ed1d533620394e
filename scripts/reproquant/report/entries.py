"""Long lists of texts among a report's facts, such as an environment's packages, for the page.

As facts they would repeat the way down to their object for every entry, and
for every subject whose server ran in the same environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from reproquant.report.facts import Fact, in_words
from reproquant.report.numbers import Quote

MANY = 12


@dataclass(frozen=True)
class Entries:
    """The texts of one object or list of a file, by key; ``same`` is where the page has these already."""

    label: str
    place: str
    texts: tuple[tuple[str, str], ...]
    same: str | None


class Gathering:
    """Gathers the entries of one page."""

    def __init__(self) -> None:
        self._places: dict[tuple[tuple[str, str], ...], str] = {}

    def gather(self, facts: Iterable[Fact]) -> list[Fact | Entries]:
        """The facts, those that are texts of one object or list and ``MANY`` or more put together."""
        gathered: list[Fact | Entries] = []
        for place, group in groupby(facts, key=_parent):
            members = list(group)
            if place is None or len(members) < MANY:
                gathered += members
            else:
                gathered.append(self._entries(place, members))
        return gathered

    def _entries(self, place: str, facts: list[Fact]) -> Entries:
        texts = tuple((_key(value), value.text) for _, value in facts if isinstance(value, Quote))
        first = self._places.setdefault(texts, place)
        return Entries(_label(facts[0][0], texts[0][0]), place, texts, first if first != place else None)


def _parent(fact: Fact) -> str | None:
    """File and pointer of the object or list that a text stands in; None for a number, or at the top."""
    _, value = fact
    if isinstance(value, Quote) and (parent := value.source.pointer.rpartition("/")[0]):
        return f"{value.source.path} {parent}"
    return None


def _key(value: Quote) -> str:
    return value.source.pointer.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def _label(label: str, key: str) -> str:
    """The label of what the entries stand in: that of an entry of an object ends with its key in words."""
    return label.removesuffix(in_words(key)).removesuffix(", ") or label
