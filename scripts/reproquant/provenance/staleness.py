"""Which part of a recipe has changed since something was made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NONE = "nothing"
PARTS = {"code": "code file {}", "locks": "lock {}", "packages": "package {}", "files": "data file {}"}

Change = tuple[str, str, str]
"""What has changed, how it was, how it is."""


def changes(then: dict[str, Any], now: dict[str, Any]) -> Iterator[Change]:
    """Every difference between two recipes of one stage, in words."""
    for part, words in PARTS.items():
        for name, old, new in differences(then.get(part, {}), now.get(part, {})):
            yield words.format(name), old, new
    for name, old, new in differences(then.get("study"), now.get("study")):
        yield f"study key {name}" if name else "the study", old, new


def differences(then: Any, now: Any, place: str = "") -> Iterator[Change]:
    """Place, old and new value of each leaf that differs; a list counts as a leaf."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted(then.keys() | now.keys()):
            inner = f"{place}.{key}" if place else str(key)
            yield from differences(then.get(key, NONE), now.get(key, NONE), inner)
    elif then != now:
        yield place, str(then), str(now)
