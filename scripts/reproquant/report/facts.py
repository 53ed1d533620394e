"""Whatever a file says, as a list of labels and values with sources."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from reproquant.provenance.lineage import dereference, pointer
from reproquant.report.numbers import Number, Numbers, Quote

UNITS = (
    *((" bytes", "B"), (" percent", "%"), (" ms", "ms"), (" gb per s", "GB/s"), (" s", "s")),
    *((" mhz", "MHz"), (" gib", "GiB"), (" c", "°C")),
)

Fact = tuple[str, Number | Quote]


def in_words(key: str) -> str:
    """A key as a label; the name of a variable, such as CUDA_VISIBLE_DEVICES, stays as it is."""
    return key if key.isupper() else key.replace("_", " ")


def facts(numbers: Numbers, path: str, at: str = "", without: Collection[str] = ()) -> list[Fact]:
    """Every scalar below a pointer of a file, nulls left out, and the keys in ``without`` at the top.

    A label is the way down to the value in words, without the unit that a key ends with.
    """
    found: list[Fact] = []

    def walk(value: Any, place: str, label: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                walk(part, place + pointer(key), (*label, in_words(key)))
        elif isinstance(value, list):
            for index, part in enumerate(value):
                walk(part, place + pointer(index), label)
        elif isinstance(value, bool | str):
            found.append((", ".join(label), numbers.quote(path, place)))
        elif isinstance(value, int | float):
            words = ", ".join(label)
            ending, unit = next(
                ((ending, unit) for ending, unit in UNITS if words.endswith(ending)), ("", "")
            )
            found.append(
                (words.removesuffix(ending).rstrip(", "), numbers.take(path, place, unit, f"{path}#{place}"))
            )

    data = dereference(numbers.read(path), at)
    if isinstance(data, dict):
        data = {key: part for key, part in data.items() if key not in without}
    walk(data, at, ())
    return found
