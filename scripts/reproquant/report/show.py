"""How a number is written for people: enough digits to compare, and a unit that fits."""

from __future__ import annotations

import math

from reproquant.report.numbers import Number

BYTE_STEPS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
SMALLEST_PLAIN = 1e-4


def show(number: Number) -> str:
    """The number and its unit: ``45.2 tok/s``, ``124 MB``, ``1.90 ×``."""
    text, unit = _split(number)
    return f"{text} {unit}" if unit else text


def show_bare(number: Number) -> str:
    """The number alone, for a table whose head gives the unit; bytes keep theirs."""
    text, unit = _split(number)
    return f"{text} {unit}" if number.unit == "B" else text


def exact(number: Number) -> str:
    """Every digit that the source holds, and the unit."""
    return f"{number.value!r} {number.unit}".strip()


def _split(number: Number) -> tuple[str, str]:
    if number.unit == "B":
        for step, name in BYTE_STEPS:
            if abs(number.value) >= step:
                return three_digits(number.value / step), name
    if isinstance(number.value, int):
        return _grouped(number.value, 0) if number.unit else str(number.value), number.unit
    return three_digits(number.value), number.unit


def three_digits(value: float) -> str:
    """Three significant digits, or all digits before the point if there are more; tiny: 3.21e-08."""
    if value == 0:
        return "0"
    if abs(value) < SMALLEST_PLAIN:
        return f"{value:.2e}"
    return _grouped(value, max(0, 2 - math.floor(math.log10(abs(value)))))


def _grouped(value: float, decimals: int) -> str:
    """From 10 000 on, digits stand in groups of three with a narrow blank between them."""
    grouping = "," if abs(value) >= 10_000 else ""
    return f"{value:z{grouping}.{decimals}f}".replace(",", "\u202f")
