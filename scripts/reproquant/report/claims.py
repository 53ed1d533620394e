"""The claims of the source article, judged: each with a verdict, the figures behind it, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reproquant.errors import StudyError
from reproquant.files import write_json
from reproquant.provenance.lineage import pointer
from reproquant.report.artifacts import Artifact
from reproquant.report.numbers import Number, Numbers
from reproquant.report.sentences import Sentence, as_data, say
from reproquant.report.subjects import METRICS, Spread, Subject
from reproquant.study import Study, read_yaml
from reproquant.study import Subject as StudySubject

PLACE = "report/claims.json"
"""Where the claims stand among the results, so that the article's figures have a source like all others."""

Verdict = Literal["reproduced", "contradicted", "undecided", "not applicable", "not measured"]
JUDGED: tuple[Verdict, ...] = ("reproduced", "contradicted", "undecided")


Keys = dict[str, str | bool | int]
"""Keys of a study's subject, with their values."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OfSubject(Part):
    """A metric of the first subject of the study that has all these keys."""

    subject: Keys
    metric: Literal["prefill_tok_per_s", "decode_tok_per_s", "output_tok_per_s", "ttft_ms", "part_of_ceiling"]
    concurrency: int


class OfArtifact(Part):
    """A property of a file."""

    artifact: str
    property: Literal["file_bytes", "bits_per_weight", "ceiling"]


class Claim(Part):
    """One claim; its keys are explained at the top of the claims' file."""

    id: str
    says: str
    of: OfSubject | OfArtifact | None = None
    about: float | None = None
    above: float | None = None
    between: tuple[float, float] | None = None
    unit: str = ""
    beats: Keys | None = None
    refused: Keys | None = None
    elsewhere: str | None = None
    depends_on: tuple[Literal["gpu", "model"], ...]

    @model_validator(mode="after")
    def _one_statement(self) -> Claim:
        kinds = (self.about, self.above, self.between, self.beats, self.refused, self.elsewhere)
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("a claim says one thing: about, above, between, beats, refused or elsewhere")
        if (self.of is None) != (self.refused is not None or self.elsewhere is not None):
            raise ValueError("`of` says what a figure is of, and only that")
        asked = (
            self.of.subject if isinstance(self.of, OfSubject) else {},
            self.beats or {},
            self.refused or {},
        )
        if unknown := {key for keys in asked for key in keys} - StudySubject.model_fields.keys():
            raise ValueError(f"a subject has no {', '.join(sorted(unknown))}: no study could have such a one")
        return self


class Claims(Part):
    """A file of claims."""

    source: str
    gpu: str
    model: str
    tolerance: Annotated[float, Field(gt=0)]
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Finding:
    """A verdict, why, and the figures of this study that it rests on."""

    verdict: Verdict
    why: Sentence = ()
    found: tuple[Number, ...] = ()


@dataclass(frozen=True)
class Judged:
    """A claim with the article's figures and what was found here."""

    claim: Claim
    expected: tuple[Number, ...]
    finding: Finding

    def data(self) -> dict[str, Any]:
        """The claim as it stands in report.json; numbers are named by id."""
        return {
            "id": self.claim.id,
            "says": self.claim.says,
            "verdict": self.finding.verdict,
            "why": as_data(self.finding.why),
            "expected": [number.id for number in self.expected],
            "found": [number.id for number in self.finding.found],
        }


@dataclass(frozen=True)
class ClaimsSection:
    """The claims of one article: those that could be judged here, and the others."""

    source: str
    judged: tuple[Judged, ...]
    others: tuple[Judged, ...]


def publish(source: Path, target: Path) -> None:
    """Write the claims' file as JSON; raises StudyError if it isn't one."""
    try:
        claims = Claims.model_validate(read_yaml(source))
    except ValidationError as error:
        remedy = "correct the keys named above; they are explained in the file"
        raise StudyError(source, str(error), remedy) from None
    write_json(target, claims.model_dump(mode="json"))


def read_claims(
    numbers: Numbers, study: Study, subjects: Sequence[Subject], artifacts: Sequence[Artifact]
) -> ClaimsSection:
    """The claims that ``publish`` wrote, each judged by these results."""
    claims = Claims.model_validate(numbers.read(PLACE))
    results = _Results(numbers, study, {subject.name: subject for subject in subjects}, artifacts)
    rows = [
        Judged(claim, expected, judge(claim, expected, claims, results))
        for claim, expected in zip(claims.claims, _expected(numbers, claims), strict=True)
    ]
    judged = tuple(row for row in rows if row.finding.verdict in JUDGED)
    return ClaimsSection(claims.source, judged, tuple(row for row in rows if row not in judged))


@dataclass(frozen=True)
class _Results:
    """What a study found, asked in a claim's words; a sentence comes back where there is no answer."""

    numbers: Numbers
    study: Study
    subjects: Mapping[str, Subject]
    artifacts: Sequence[Artifact]

    def gpus(self) -> list[str]:
        """The models of the GPUs that were there when the subjects were measured."""
        found = {
            gpu["name"]
            for subject in self.subjects.values()
            if subject.hardware == "gpu"
            for gpu in self.numbers.read(subject.path)["machine"].get("gpus", [])
        }
        return sorted(found)

    def subject(self, keys: Keys) -> Subject | str:
        """The first subject of the study that has all these keys."""
        for subject in self.study.subjects:
            if all(getattr(subject, key) == value for key, value in keys.items()):
                return self.subjects[subject.name]
        return f"this study has no subject with {', '.join(f'{key} {value}' for key, value in keys.items())}"

    def figures(self, of: OfSubject, keys: Keys) -> Spread | str:
        """A subject's metric at the claim's concurrency."""
        subject = self.subject(keys)
        if isinstance(subject, str):
            return subject
        if not subject.measured:
            return f"{subject.name} is {subject.status}"
        level = next((level for level in subject.levels if level.concurrency.value == of.concurrency), None)
        if level is None:
            return f"{subject.name} was not measured with that many requests at once"
        if of.metric in METRICS:
            return level.figures[of.metric]
        return self._part_of_ceiling(subject, level.figures["decode_tok_per_s"])

    def property(self, of: OfArtifact) -> Number | str:
        """A property of a file."""
        row = next((row for row in self.artifacts if row.name == of.artifact), None)
        if row is None:
            return f"this study makes no {of.artifact}"
        if of.property == "ceiling":
            return self._ceiling(row.size, of.artifact)
        found = row.size if of.property == "file_bytes" else row.bits_per_weight
        return found or f"{of.artifact} has no bits per weight"

    def _ceiling(self, size: Number, name: str) -> Number | str:
        """Tokens a second if one GPU did nothing but read the weights once a token (1e9 bytes/s by bytes)."""
        if self.study.machine.bandwidth_gb_per_s is None:
            return "the study doesn't give the GPU's memory bandwidth"
        place = "/machine/bandwidth_gb_per_s"
        bandwidth = self.numbers.take("study.json", place, "GB/s", "study.bandwidth_gb_per_s")
        return self.numbers.derive("1e9 a / b", [bandwidth, size], "tok/s", f"claim.ceiling.{name}")

    def _part_of_ceiling(self, subject: Subject, decode: Spread) -> Spread | str:
        ceiling = self._ceiling(subject.size, subject.name)
        if isinstance(ceiling, str):
            return ceiling

        def part(number: Number) -> Number:
            return self.numbers.derive("a / b", [number, ceiling], "", f"claim.part_of_ceiling.{number.id}")

        return Spread(part(decode.median), part(decode.low), part(decode.high), ())


def judge(claim: Claim, expected: tuple[Number, ...], claims: Claims, results: _Results) -> Finding:
    """The verdict on a claim."""
    if claim.elsewhere:
        return Finding("not measured", (claim.elsewhere,))
    if reason := _not_about_this(claim, claims, results):
        return Finding("not applicable", (reason,))
    if claim.refused is not None:
        return _refusal(results.subject(claim.refused))
    if isinstance(claim.of, OfArtifact):
        size = results.property(claim.of)
        return (
            Finding("not measured", (size,))
            if isinstance(size, str)
            else _compared(claim, expected, size, claims, results)
        )
    assert claim.of is not None
    mine = results.figures(claim.of, claim.of.subject)
    if isinstance(mine, str):
        return Finding("not measured", (mine,))
    if claim.beats is None:
        return _compared(claim, expected, mine.median, claims, results)
    other = results.figures(claim.of, claim.beats)
    if isinstance(other, str):
        return Finding("not measured", (other,))
    return _order(claim, mine, other, results.numbers)


def _expected(numbers: Numbers, claims: Claims) -> Iterator[tuple[Number, ...]]:
    """The article's own figures of each claim."""
    for index, claim in enumerate(claims.claims):
        ends = [("between", end) for end in range(len(claim.between or ()))]
        single = [(key,) for key in ("about", "above") if getattr(claim, key) is not None]
        yield tuple(
            numbers.take(
                PLACE,
                pointer("claims", index, *place),
                claim.unit,
                ".".join(["claim", claim.id, *map(str, place)]),
            )
            for place in (*single, *ends)
        )


def _not_about_this(claim: Claim, claims: Claims, results: _Results) -> str | None:
    """Why a claim says nothing about this study, or None if it does."""
    if "gpu" in claim.depends_on and (gpus := results.gpus()) != [claims.gpu]:
        return f"it is about the {claims.gpu}, and this ran on {', '.join(gpus) or 'a CPU'}"
    if "model" in claim.depends_on and results.study.model.name != claims.model:
        return f"it is about {claims.model}, and this is {results.study.model.name}"
    return None


def _refusal(subject: Subject | str) -> Finding:
    if isinstance(subject, str):
        return Finding("not measured", (subject,))
    if subject.status == "unsupported" and subject.evidence:
        return Finding("reproduced", say("“{}”", subject.evidence))
    verdict: Verdict = "contradicted" if subject.levels else "not measured"
    return Finding(verdict, (f"{subject.name} is {subject.status}",))


def _order(claim: Claim, mine: Spread, other: Spread, numbers: Numbers) -> Finding:
    """Which of two is faster, if their rounds don't overlap."""
    ratio = numbers.derive("a / b", [mine.median, other.median], "×", f"claim.{claim.id}.ratio")
    found = (mine.median, other.median)
    if mine.low.value > other.high.value:
        return Finding("reproduced", say("{} the other", ratio), found)
    if mine.high.value < other.low.value:
        return Finding("contradicted", say("{} the other", ratio), found)
    why = say("{} the other; the rounds overlap, so no difference is shown", ratio)
    return Finding("undecided", why, found)


def _compared(
    claim: Claim, expected: tuple[Number, ...], found: Number, claims: Claims, results: _Results
) -> Finding:
    """A figure beside the article's: by how much it differs, and whether that is too much."""
    nearest = min(expected, key=lambda number: abs(number.value - found.value))
    name = f"claim.{claim.id}.deviation"
    deviation = results.numbers.derive("100 (a / b - 1)", [found, nearest], "%", name)
    if claim.between is not None:
        fits = claim.between[0] <= found.value <= claim.between[1]
    elif claim.above is not None:
        fits = found.value > claim.above
    else:
        fits = abs(deviation.value) <= 100 * claims.tolerance
    why = say("{} off the article's figure", deviation)
    return Finding("reproduced" if fits else "contradicted", why, (found,))
