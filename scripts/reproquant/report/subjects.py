"""The subjects of a study as the report shows them: figures with sources, status, words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from pydantic import ValidationError

from reproquant.bench.measurement import Measurement, Status
from reproquant.errors import FormatError
from reproquant.provenance.lineage import pointer
from reproquant.report.between_cards import BetweenCards, read_between_cards
from reproquant.report.checks import Check, read_checks
from reproquant.report.efficiency import Efficiency, read_efficiency
from reproquant.report.numbers import Number, Numbers, Quote
from reproquant.report.sentences import Sentence
from reproquant.study import Study
from reproquant.study import Subject as StudySubject

METRICS = {
    "ttft_ms": "ms",
    "prefill_tok_per_s": "tok/s",
    "decode_tok_per_s": "tok/s",
    "output_tok_per_s": "tok/s",
}
ENGINES = {"llama_cpp": "llama.cpp", "vllm": "vLLM"}
RANKED: tuple[Status, ...] = ("ok", "flagged")
BELIEVED: tuple[Status, ...] = (*RANKED, "unstable")
"""What was measured as it should be, if only within its ranges."""


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest round, and every round."""

    median: Number
    low: Number
    high: Number
    rounds: tuple[Number, ...]

    def clear_of(self, other: Spread) -> bool:
        """Whether all rounds lie on one side of all of the other's."""
        return self.low.value > other.high.value or self.high.value < other.low.value


@dataclass(frozen=True)
class Level:
    """One concurrency of one subject; ``figures`` has a key for each of ``METRICS``."""

    concurrency: Number
    figures: dict[str, Spread]


@dataclass(frozen=True)
class Subject:
    """One row of the report.

    ``ids`` is the digest of the token ids that the subject's server made of the
    prompt's text. ``doubts`` are the report's own: see ``report.doubts``.
    """

    name: str
    engine: str
    artifact: str
    status: Status
    emulated: bool
    baseline: bool
    hardware: str
    expected: str | None
    reasons: tuple[Quote, ...]
    evidence: Quote | None
    command: Quote
    size: Number
    levels: tuple[Level, ...]
    checks: tuple[Check, ...]
    efficiency: Efficiency | None
    between_cards: BetweenCards | None
    path: str
    ids: Quote | None
    ratios: dict[str, Number]
    doubts: tuple[Sentence, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether its figures can be believed."""
        return self.status in RANKED and bool(self.levels)

    @property
    def ranked(self) -> bool:
        """Whether its figures may be compared with others': an emulation's say nothing about its format."""
        return self.measured and not self.emulated

    @property
    def swinging(self) -> bool:
        """Whether its figures can be believed within their ranges alone."""
        return self.status == "unstable" and bool(self.levels) and not self.emulated

    @property
    def believed(self) -> bool:
        """Whether its figures may stand beside others', if only within their ranges."""
        return self.ranked or self.swinging

    @property
    def standing(self) -> str:
        """The status, with what must never be left out of it."""
        return f"{self.status}, emulated" if self.emulated else self.status

    @property
    def single(self) -> Level:
        """The level with the fewest requests at once."""
        return min(self.levels, key=lambda level: level.concurrency.value)

    def at(self, concurrency: Number) -> Level | None:
        """The level of that many requests at once, if it was measured."""
        return next((level for level in self.levels if level.concurrency.value == concurrency.value), None)


def read_subjects(numbers: Numbers, study: Study) -> tuple[Subject, ...]:
    """Every subject of the study: the ranked first, the fastest decode on top, then study order.

    Raises FormatError if a subject's measurement is missing or isn't one.
    """
    subjects = [_read(numbers, study, subject) for subject in study.subjects]
    baseline = next(subject for subject in subjects if subject.baseline)
    subjects = [_with_ratios(numbers, subject, baseline) for subject in subjects]
    return tuple(sorted(subjects, key=_places(subjects)))


def _places(subjects: Sequence[Subject]) -> Callable[[Subject], float]:
    """A key that sorts the ranked by their decode at the fewest requests, before all others."""
    fewest = min(
        (subject.single.concurrency for subject in subjects if subject.levels),
        key=lambda concurrency: concurrency.value,
        default=None,
    )
    ranking = best(subjects, "decode_tok_per_s", fewest) if fewest else []
    places = {subject.name: float(place) for place, (subject, _) in enumerate(ranking)}
    return lambda subject: places.get(subject.name, inf)


def read_measurement(numbers: Numbers, path: str) -> Measurement:
    """The measurement at ``path``; raises FormatError if it is missing or isn't one."""
    try:
        return Measurement.model_validate(numbers.read(path))
    except ValidationError as error:
        raise FormatError(path, f"it isn't a measurement: {error}", "measure the subject again") from None


def _read(numbers: Numbers, study: Study, subject: StudySubject) -> Subject:
    path = f"bench/{subject.name}.json"
    measurement = read_measurement(numbers, path)
    efficiency = read_efficiency(numbers, path, subject.name, measurement)
    return Subject(
        name=subject.name,
        engine=ENGINES[subject.engine],
        artifact=subject.artifact,
        status=measurement.status,
        emulated=measurement.emulated,
        baseline=subject.name == study.benchmark.baseline,
        hardware=measurement.hardware,
        expected=measurement.expected,
        reasons=tuple(numbers.quote(path, pointer("reasons", n)) for n in range(len(measurement.reasons))),
        evidence=numbers.quote(path, "/evidence") if measurement.evidence else None,
        command=numbers.command(path, "/command"),
        size=numbers.take(path, "/artifact_bytes", "B", f"{subject.name}.artifact_bytes"),
        levels=tuple(
            read_level(numbers, path, subject.name, measurement, n) for n in range(len(measurement.levels))
        ),
        checks=read_checks(numbers, path, subject.name, measurement),
        efficiency=efficiency,
        between_cards=read_between_cards(numbers, path, subject.name, measurement, efficiency),
        path=path,
        ids=numbers.quote(path, "/workload/ids_sha256") if measurement.workload.ids_sha256 else None,
        ratios={},
    )


def read_level(numbers: Numbers, path: str, name: str, measurement: Measurement, index: int) -> Level:
    """A concurrency of the measurement at ``path``; the ids of its numbers begin with ``name``."""
    level = measurement.levels[index]
    prefix = f"{name}.c{level.concurrency}"

    def spread(metric: str, unit: str) -> Spread:
        def take(*place: str | int) -> Number:
            at = pointer("levels", index, metric, *place)
            return numbers.take(path, at, unit, ".".join([prefix, metric, *map(str, place)]))

        rounds = range(len(getattr(level, metric).rounds))
        return Spread(take("median"), take("min"), take("max"), tuple(take("rounds", n) for n in rounds))

    concurrency = numbers.take(path, pointer("levels", index, "concurrency"), "", f"{prefix}.concurrency")
    return Level(concurrency, {metric: spread(metric, unit) for metric, unit in METRICS.items()})


def _with_ratios(numbers: Numbers, subject: Subject, baseline: Subject) -> Subject:
    """The subject with its decode (fewest requests) and output (most requests) as parts of the baseline's."""
    if subject is baseline or not (subject.ranked and baseline.ranked):
        return subject
    pairs = {"decode_tok_per_s": (subject.single, baseline.single)}
    most = max(subject.levels, key=lambda level: level.concurrency.value)
    if (other := baseline.at(most.concurrency)) is not None:
        pairs["output_tok_per_s"] = (most, other)
    ratios = {
        metric: numbers.derive(
            "a / b",
            [own.figures[metric].median, base.figures[metric].median],
            "×",
            f"{subject.name}.{metric}.to_baseline",
        )
        for metric, (own, base) in pairs.items()
    }
    return replace(subject, ratios=ratios)


def best(subjects: Sequence[Subject], metric: str, concurrency: Number) -> list[tuple[Subject, Spread]]:
    """The subjects measured at that concurrency that can be ranked by ``metric``, highest median first.

    One that is unstable is among them where its range is clear of every other's: however much it swings,
    its place is certain.
    """
    measured = believed(subjects, metric, concurrency)
    placed = [
        (subject, own)
        for subject, own in measured
        if subject.ranked or all(own.clear_of(other) for _, other in measured if other is not own)
    ]
    return sorted(placed, key=lambda pair: -pair[1].median.value)


def rivals(subjects: Sequence[Subject], metric: str, concurrency: Number) -> list[tuple[Subject, Spread]]:
    """Those that ``best`` has no place for and that may still be above its first: a round of them is."""
    ranking = best(subjects, metric, concurrency)
    if not ranking:
        return []
    placed = [subject for subject, _ in ranking]
    return [
        (subject, own)
        for subject, own in believed(subjects, metric, concurrency)
        if subject not in placed and own.high.value > ranking[0][1].low.value
    ]


def believed(subjects: Sequence[Subject], metric: str, concurrency: Number) -> list[tuple[Subject, Spread]]:
    """The subjects measured at that concurrency whose figures can be believed, each with its ``metric``."""
    return [
        (subject, level.figures[metric])
        for subject in subjects
        if subject.believed and (level := subject.at(concurrency)) is not None
    ]
