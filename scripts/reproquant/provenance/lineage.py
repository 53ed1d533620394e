"""How a number is found again: at a JSON pointer of a file, or by a named formula from other numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

FORMULAS: dict[str, Callable[[Sequence[int | float]], int | float]] = {
    "a / b": lambda values: values[0] / values[1],
    "sum": sum,
    "1e9 a / b": lambda values: 1e9 * values[0] / values[1],
    "100 (a / b - 1)": lambda values: 100 * (values[0] / values[1] - 1),
}


def pointer(*parts: str | int) -> str:
    """The RFC 6901 pointer to a place: ``pointer("levels", 0)`` is ``/levels/0``."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def dereference(data: Any, at: str) -> Any:
    """What stands at an RFC 6901 pointer of JSON data; raises LookupError if nothing does."""
    if at and not at.startswith("/"):
        raise LookupError(at)
    for part in at.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(data, dict):
            data = data[key]
        elif isinstance(data, list) and key.isascii() and key.isdigit() and str(int(key)) == key:
            data = data[int(key)]
        else:
            raise LookupError(at)
    return data
