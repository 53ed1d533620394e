"""The drift sentinel as the report shows it: the baseline before and after the other subjects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from reproquant.provenance.lineage import dereference
from reproquant.report.answer import concurrencies
from reproquant.report.numbers import Number, Numbers, Quote
from reproquant.report.sentences import Sentence, as_data, say
from reproquant.report.subjects import RANKED, Spread, Subject, read_level, read_measurement
from reproquant.study import Study

HERE = "/predicate/buildDefinition/internalParameters"
METADATA = "/predicate/runDetails/metadata"


@dataclass(frozen=True)
class Drift:
    """The baseline's decode twice, and what the difference says.

    ``first``, ``again`` and ``difference`` are null where there is no figure to
    be trusted; then the verdict is ``unknown``. ``between`` names the subjects
    that were measured from the first to the second time, the baseline among
    them, and ``doubt`` is what they are doubted for.
    """

    baseline: str
    concurrency: Number
    first: Spread | None
    again: Spread | None
    difference: Number | None
    limit: Number
    verdict: Literal["ok", "flagged", "unknown"]
    doubt: Sentence | None
    reasons: tuple[Quote, ...]
    between: tuple[str, ...]
    span: tuple[Sentence, ...]

    def data(self) -> dict[str, Any]:
        """The sentinel as it stands in report.json; numbers are named by id."""
        return {
            "baseline": self.baseline,
            "first": self.first.median.id if self.first else None,
            "again": self.again.median.id if self.again else None,
            "difference": self.difference.id if self.difference else None,
            "limit": self.limit.id,
            "verdict": self.verdict,
            "doubt": as_data(self.doubt) if self.doubt else None,
            "between": list(self.between),
        }


def read_drift(numbers: Numbers, study: Study, subjects: Sequence[Subject]) -> Drift:
    """Compare the baseline's two measurements; raises FormatError if the second is missing or isn't one."""
    baseline = next(subject for subject in subjects if subject.baseline)
    path = f"bench/again/{baseline.name}.json"
    measurement = read_measurement(numbers, path)
    first = baseline.single.figures["decode_tok_per_s"] if baseline.measured else None
    again = (
        read_level(numbers, path, f"{baseline.name}.again", measurement, 0).figures["decode_tok_per_s"]
        if measurement.status in RANKED and measurement.levels
        else None
    )
    difference = (
        numbers.derive(
            "100 (a / b - 1)", [again.median, first.median], "%", f"{baseline.name}.again.difference"
        )
        if first and again
        else None
    )
    limit = numbers.take(
        "study.json", "/benchmark/limits/baseline_drift_percent", "%", "study.limits.baseline_drift_percent"
    )
    between, span = _span(numbers, baseline, subjects, path)
    return Drift(
        baseline=baseline.name,
        concurrency=concurrencies(numbers, study)[0],
        first=first,
        again=again,
        difference=difference,
        limit=limit,
        verdict=_verdict(difference, limit),
        doubt=_doubt(baseline.name, first, again, difference, limit, numbers.quote(path, "/status")),
        reasons=tuple(numbers.quote(path, f"/reasons/{n}") for n in range(len(measurement.reasons))),
        between=between,
        span=span,
    )


def _verdict(difference: Number | None, limit: Number) -> Literal["ok", "flagged", "unknown"]:
    if difference is None:
        return "unknown"
    return "flagged" if abs(difference.value) > limit.value else "ok"


def _doubt(
    name: str,
    first: Spread | None,
    again: Spread | None,
    difference: Number | None,
    limit: Number,
    status: Quote,
) -> Sentence | None:
    """What is held against the subjects in between; without a first figure nobody is compared with it."""
    if first and again and difference and _verdict(difference, limit) == "flagged":
        text = f"The baseline, {name}, decoded at {{}} the first time and at {{}} after all subjects, {{}}; "
        text += "{} is steady. So the machine did not stay the same while this was measured."
        return say(text, first.median, again.median, difference, limit)
    if first and not again:
        text = f"The baseline, {name}, was {{}} when it was measured again after all subjects, "
        return say(text + "so nothing tells whether the machine stayed the same.", status)
    return None


def _span(
    numbers: Numbers, baseline: Subject, subjects: Sequence[Subject], path: str
) -> tuple[tuple[str, ...], tuple[Sentence, ...]]:
    """The subjects that were measured between the two times, and in words what the verdict is about."""
    since, until = _when(numbers, baseline.path)[0], _when(numbers, path)[0]
    measured = [subject for subject in subjects if subject.levels]
    between = tuple(one.name for one in measured if _inside(_when(numbers, one.path), since, until))
    others = [name for name in between if name != baseline.name]
    outside = [one.name for one in measured if one.name not in between]
    sentences = [say("The first measurement began at {}, the second at {}.", since, until)]
    if not baseline.measured:
        text = "The baseline was {} the first time, so the second has nothing to be compared with."
        sentences.append(say(text, numbers.quote(baseline.path, "/status")))
    if others:
        sentences.append((f"In between: {', '.join(others)}.",))
    if outside:
        sentences.append((f"Measured at other times, so it says nothing of them: {', '.join(outside)}.",))
    return between, tuple(sentences)


def _when(numbers: Numbers, path: str) -> tuple[Quote, Quote]:
    """When a measurement began and ended; of one out of the store, when it was really made."""
    record = f"{path}.prov.json"
    if dereference(numbers.read(record), HERE).get("stored"):
        made = f"{HERE}/stored/made"
        return numbers.quote(record, f"{made}/started"), numbers.quote(record, f"{made}/finished")
    return numbers.quote(record, f"{METADATA}/startedOn"), numbers.quote(record, f"{METADATA}/finishedOn")


def _inside(times: tuple[Quote, Quote], since: Quote, until: Quote) -> bool:
    start, end, first, last = (datetime.fromisoformat(time.text) for time in (*times, since, until))
    return first <= start and end <= last
