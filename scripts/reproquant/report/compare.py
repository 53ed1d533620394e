"""Two results side by side: for each figure what it was, what it is, and whether the noise explains it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Literal

from reproquant.bench.measurement import Level, Measurement, Request, Summary
from reproquant.bench.statistics import measurable
from reproquant.provenance.lineage import pointer
from reproquant.quality.result import Quality
from reproquant.report.causes import Cause, causes
from reproquant.report.noise import LEVEL, Place, Sample, beyond_errors, judge
from reproquant.report.side import Side, load
from reproquant.report.subjects import BELIEVED, METRICS

Verdict = Literal[
    "faster",
    "slower",
    "smaller",
    "larger",
    "better",
    "worse",
    "the same",
    "no difference shown",
    "not comparable",
]
STILL: tuple[Verdict, ...] = ("the same", "no difference shown", "not comparable")
LOWER_IS_BETTER = ("ttft_ms", "start_s")


@dataclass(frozen=True)
class Figure:
    """Median, lowest and highest value, and all in order; ``at`` is where they stand, file#pointer."""

    median: float
    min: float
    max: float
    values: tuple[float, ...]
    at: str


@dataclass(frozen=True)
class Row:
    """One figure of one subject or artifact. ``ratio`` is new over old, with the range of its pairs if it has
    any; ``p`` and ``spread`` are those of ``noise.judge``, null where nothing was tested."""

    of: str
    metric: str
    concurrency: int | None
    unit: str
    old: Figure
    new: Figure
    verdict: Verdict
    why: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    spread: float | None = None

    @property
    def moved(self) -> bool:
        """Whether it moved beyond the noise."""
        return self.verdict not in STILL


@dataclass(frozen=True)
class Pair:
    """A subject that both have: its status and the reasons for it, old and new, and ``obstacles``, why its
    speeds can't be compared."""

    name: str
    status: tuple[str, str]
    doubts: tuple[tuple[str, ...], tuple[str, ...]]
    obstacles: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """``gone`` and ``come`` are subjects and evaluations that only the old or only the new results have."""

    old: Path
    new: Path
    causes: tuple[Cause, ...]
    pairs: tuple[Pair, ...]
    gone: tuple[str, ...]
    come: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def tested(self) -> int:
        """How many figures had a test; each may be told apart by chance, once in ``1 / LEVEL``."""
        return sum(row.p is not None for row in self.rows)

    def as_data(self) -> dict[str, Any]:
        """The comparison as JSON data."""
        return {
            **asdict(self),
            "old": str(self.old),
            "new": str(self.new),
            "rows": [{**asdict(row), "moved": row.moved} for row in self.rows],
            "tested": self.tested,
            "level": LEVEL,
        }


def compare(old: Path, new: Path) -> Comparison:
    """Compare two results directories, their report.json, or single measurements.

    A speed or a time has moved if ``noise.judge`` shows it; a size if it isn't
    the same; a quality if its difference is beyond both standard errors. Figures
    of different work, machines, models or engines, or of a status that can't be
    trusted, are not comparable. Raises FormatError for what can't be read.
    """
    before, after = load(old), load(new)
    models = before.study.get("model"), after.study.get("model")
    pairs = tuple(
        Pair(
            name,
            (one.status, other.status),
            (tuple(one.reasons), tuple(other.reasons)),
            tuple(_obstacles(before, after, one, other)),
        )
        for name, one in before.measurements.items()
        if (other := after.measurements.get(name)) is not None
    )
    rows = [row for pair in pairs for row in _subject_rows(pair, before, after)]
    rows += [
        row
        for name, quality in before.qualities.items()
        if name in after.qualities
        for row in _quality_rows(name, quality, after.qualities[name], models)
    ]
    return Comparison(
        old=old,
        new=new,
        causes=causes(before, after),
        pairs=pairs,
        gone=tuple(_only(before, after)),
        come=tuple(_only(after, before)),
        rows=tuple(rows),
    )


def _only(one: Side, other: Side) -> Iterator[str]:
    yield from (name for name in one.measurements if name not in other.measurements)
    yield from (f"quality of {name}" for name in one.qualities if name not in other.qualities)


def _obstacles(before: Side, after: Side, old: Measurement, new: Measurement) -> Iterator[str]:
    """Why the speeds of two measurements can't be compared; the same measurement always can."""
    if old == new:
        return
    for side, one in (("old", old), ("new", new)):
        if one.status not in BELIEVED:
            yield f"status: the {side} one is {one.status}"
    for key in ("prompt_tokens", "output_tokens", "text_sha256", "ids_sha256"):
        then, now = getattr(old.workload, key), getattr(new.workload, key)
        if None not in (then, now) and then != now:
            yield f"workload: {key} was {then} and is {now}"
    for what, then, now in (
        ("engine", old.engine, new.engine),
        ("artifact", old.artifact, new.artifact),
        ("machine", _machine(old), _machine(new)),
        ("model", before.study.get("model"), after.study.get("model")),
    ):
        if then and now and then != now:
            yield f"{what}: it was {then} and is {now}"


def _machine(measurement: Measurement) -> str:
    """What makes another machine: processor, cores, GPUs. Kernel and driver are causes, not obstacles."""
    host = measurement.machine.get("host", {})
    gpus = [gpu.get("name") for gpu in measurement.machine.get("gpus", [])]
    parts = [host.get("cpu"), host.get("cores_available") and f"{host['cores_available']} cores", *gpus]
    return ", ".join(map(str, filter(None, parts)))


def _subject_rows(pair: Pair, before: Side, after: Side) -> Iterator[Row]:
    old, new = before.measurements[pair.name], after.measurements[pair.name]
    levels = {level.concurrency: level for level in new.levels}
    for place, level in enumerate(old.levels):
        if (other := levels.get(level.concurrency)) is not None:
            for metric, unit in METRICS.items():
                was = _figure(pair.name, place, metric, getattr(level, metric))
                now = _figure(pair.name, new.levels.index(other), metric, getattr(other, metric))
                samples = _sample(old, level, was), _sample(new, other, now)
                obstacles = [*pair.obstacles, *_clocks(metric, level, other)]
                yield _timed(pair.name, metric, level.concurrency, unit, (was, now), samples, obstacles)
    if old.start_s and new.start_s:
        was, now = (_listed(one.start_s, f"bench/{pair.name}.json#/start_s") for one in (old, new))
        samples = Sample(was.values), Sample(now.values)
        yield _timed(pair.name, "start_s", None, "s", (was, now), samples, pair.obstacles)
    yield _size(pair.name, old.artifact_bytes, new.artifact_bytes)


def _clocks(metric: str, old: Level, new: Level) -> list[str]:
    if metric != "prefill_tok_per_s" or old.prefill_from == new.prefill_from:
        return []
    return [f"clock: the {old.prefill_from}'s was read, and now the {new.prefill_from}'s"]


def _timed(
    of: str,
    metric: str,
    concurrency: int | None,
    unit: str,
    figures: tuple[Figure, Figure],
    samples: tuple[Sample, Sample],
    obstacles: list[str] | tuple[str, ...],
) -> Row:
    """The row of a speed or a time."""
    head = (of, metric, concurrency, unit, *figures)
    if obstacles:
        return Row(*head, "not comparable", "; ".join(obstacles))
    if samples[0] == samples[1]:
        return Row(*head, "the same", "every round is the same one", 1.0)
    found = judge(*samples)
    faster = (found.ratio < 1) == (metric in LOWER_IS_BETTER)
    verdict: Verdict = ("faster" if faster else "slower") if found.shown else "no difference shown"
    return Row(*head, verdict, found.why, found.ratio, found.low, found.high, found.p, found.spread)


def _size(of: str, old: int, new: int) -> Row:
    at = f"bench/{of}.json#/artifact_bytes"
    verdict: Verdict = "the same" if old == new else "smaller" if new < old else "larger"
    return Row(
        of, "artifact_bytes", None, "B", _listed([old], at), _listed([new], at), verdict, "counted", new / old
    )


def _quality_rows(name: str, old: Quality, new: Quality, models: tuple[Any, Any]) -> Iterator[Row]:
    """Perplexity and divergence; evaluations of another model or on other tokens are no pair."""
    pair = (old.tokens_sha256, old.method, models[0]) == (new.tokens_sha256, new.method, models[1])
    figures = [
        (
            "perplexity",
            "",
            True,
            (old.perplexity, old.perplexity_error),
            (new.perplexity, new.perplexity_error),
        )
    ]
    if (was := old.divergence) and (now := new.divergence):
        figures += [
            ("divergence/kld", "nat", True, (was.kld, was.kld_error), (now.kld, now.kld_error)),
            (
                "divergence/same_top_percent",
                "%",
                False,
                (was.same_top_percent, was.same_top_error_percent),
                (now.same_top_percent, now.same_top_error_percent),
            ),
        ]
    for metric, unit, lower_is_better, before, after in figures:
        at = f"quality/{name}.json#/{metric}"
        head = (
            f"quality of {name}",
            metric.split("/")[-1],
            None,
            unit,
            _listed([before[0]], at),
            _listed([after[0]], at),
        )
        difference = after[0] - before[0]
        if not pair:
            yield Row(*head, "not comparable", "of another model, on other tokens, or by another method")
        elif difference == 0:
            yield Row(*head, "the same", "to the last bit", 1.0)
        elif not beyond_errors(difference, before[1], after[1]):
            yield Row(*head, "no difference shown", "within both standard errors")
        else:
            better = (difference < 0) == lower_is_better
            yield Row(*head, "better" if better else "worse", "beyond both standard errors")


def _sample(measurement: Measurement, level: Level, figure: Figure) -> Sample:
    places = _places(measurement.requests, level.concurrency)
    return Sample(figure.values, places if len(places) == len(figure.values) else ())


def _places(requests: list[Request], concurrency: int) -> tuple[Place, ...]:
    """Launch and round of each round that has figures, in the order of ``Level``'s rounds."""

    def place(request: Request) -> Place:
        return request.launch, request.round

    own = sorted((request for request in requests if request.concurrency == concurrency), key=place)
    rounds = [(key, list(members)) for key, members in groupby(own, place)]
    return tuple(
        key for key, members in rounds if len(members) == concurrency and all(map(measurable, members))
    )


def _figure(subject: str, place: int, metric: str, summary: Summary) -> Figure:
    at = f"bench/{subject}.json#{pointer('levels', place, metric)}"
    return Figure(summary.median, summary.min, summary.max, tuple(summary.rounds), at)


def _listed(values: list[float] | list[int], at: str) -> Figure:
    return Figure(median(values), min(values), max(values), tuple(values), at)
