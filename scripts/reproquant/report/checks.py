"""The cross-checks of a subject as the report shows them: two figures and whether they agree."""

from __future__ import annotations

from dataclasses import dataclass

from reproquant.bench.measurement import Measurement
from reproquant.provenance.lineage import pointer
from reproquant.report.numbers import Number, Numbers, Quote


@dataclass(frozen=True)
class Check:
    """One row: what was compared, at how many requests at once, both figures with where they come from."""

    what: Quote
    concurrency: Number
    left: Number
    left_of: Quote
    right: Number
    right_of: Quote
    difference: Number
    verdict: Quote


def read_checks(numbers: Numbers, path: str, name: str, measurement: Measurement) -> tuple[Check, ...]:
    """Every cross-check of the measurement at ``path``, of the subject ``name``."""
    return tuple(
        _check(numbers, path, f"{name}.checks.{index}", index, measurement)
        for index in range(len(measurement.checks))
    )


def _check(numbers: Numbers, path: str, prefix: str, index: int, measurement: Measurement) -> Check:
    check = measurement.checks[index]

    def take(key: str, unit: str) -> Number:
        return numbers.take(path, pointer("checks", index, key), unit, f"{prefix}.{key}")

    def quote(key: str) -> Quote:
        return numbers.quote(path, pointer("checks", index, key))

    return Check(
        what=quote("what"),
        concurrency=take("concurrency", ""),
        left=take("left", check.unit),
        left_of=quote("left_of"),
        right=take("right", check.unit),
        right_of=quote("right_of"),
        difference=take("difference", check.difference_unit),
        verdict=quote("verdict"),
    )
