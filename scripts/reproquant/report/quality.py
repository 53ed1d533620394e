"""What each format costs in quality, beside its size and the speed of the subjects that serve it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from reproquant.errors import FormatError
from reproquant.quality import result
from reproquant.report.answer import concurrencies
from reproquant.report.numbers import Number, Numbers, Quote
from reproquant.report.sentences import Sentence, say
from reproquant.report.subjects import Spread, Subject, best
from reproquant.study import Study

ORIGINAL = "checkpoint"
BUGGY, MENDED = "autofp8", "corrected"


@dataclass(frozen=True)
class Evaluation:
    """One artifact on the study's text; the original has no divergence. ``second`` is llama-perplexity's.

    ``fastest`` is the first of the ranked subjects that serve it, by decode at the fewest requests.
    """

    artifact: str
    method: Quote
    kept: bool
    size: Number
    perplexity: Number
    to_original: Number | None
    divergence: Number | None
    error: Number | None
    same_top: Number | None
    second: Number | None
    fastest: tuple[str, Number] | None
    unbeaten: bool

    def data(self) -> dict[str, Any]:
        """The evaluation in report.json, its numbers by id."""
        numbers = {
            "artifact_bytes": self.size,
            "perplexity": self.perplexity,
            "to_original": self.to_original,
            "kld": self.divergence,
            "kld_error": self.error,
            "same_top_percent": self.same_top,
            "llama_perplexity_kld": self.second,
        }
        ids = {key: number.id if number else None for key, number in numbers.items()}
        return {"artifact": self.artifact, "method": self.method.text, "unbeaten": self.unbeaten, **ids}


@dataclass(frozen=True)
class Quality:
    """All evaluations, the original first, and what they mean."""

    evaluations: tuple[Evaluation, ...]
    definition: Sentence
    findings: tuple[Sentence, ...]

    def of(self, artifact: str) -> Evaluation | None:
        """The evaluation of what a subject serves."""
        return next((one for one in self.evaluations if one.artifact == artifact), None)

    @property
    def compared(self) -> tuple[Evaluation, ...]:
        """All but the original."""
        return tuple(one for one in self.evaluations if one.divergence)

    @property
    def frontier(self) -> tuple[Evaluation, ...]:
        """Those that no other beats in both size and divergence."""
        return tuple(one for one in self.compared if one.unbeaten)


def read_quality(numbers: Numbers, study: Study, subjects: Sequence[Subject]) -> Quality | None:
    """The study's evaluations; None if it asks for none. Raises FormatError for a file that isn't one."""
    if not study.quality.artifacts:
        return None
    names = (ORIGINAL, *study.quality.artifacts)
    read = {name: _read(numbers, name) for name in names}
    ranking = best(subjects, "decode_tok_per_s", concurrencies(numbers, study)[0])
    evaluations = tuple(_evaluation(numbers, name, read, ranking) for name in names)
    path = f"quality/{ORIGINAL}.json"
    definition = say(
        "Scored are {} tokens of the study's text, in {} of {}, each with at least half a chunk before "
        "it. The divergence is the mean KL divergence from the unquantized checkpoint in float32; every "
        "format sees the same tokens. Arithmetic is float32 throughout, so only what is quantized differs.",
        numbers.take(path, "/scored_tokens", "", "quality.scored_tokens"),
        numbers.take(path, "/chunks", "chunks", "quality.chunks"),
        numbers.take(path, "/chunk_tokens", "tokens", "quality.chunk_tokens"),
    )
    return Quality(evaluations, definition, (*_second_way(evaluations), *_bug(numbers, study, evaluations)))


def _read(numbers: Numbers, name: str) -> result.Quality:
    path = f"quality/{name}.json"
    kind = result.Original if name == ORIGINAL else result.Quality
    try:
        return kind.model_validate(numbers.read(path))
    except ValidationError as error:
        raise FormatError(path, f"it isn't an evaluation: {error}", "run the workflow again") from None


def _evaluation(
    numbers: Numbers, name: str, read: dict[str, result.Quality], ranking: Sequence[tuple[Subject, Spread]]
) -> Evaluation:
    path, one = f"quality/{name}.json", read[name]

    def take(at: str, unit: str) -> Number:
        return numbers.take(path, at, unit, f"quality.{name}{at.replace('/', '.')}")

    perplexity, compared = take("/perplexity", ""), one.divergence is not None
    original = numbers[f"quality.{ORIGINAL}.perplexity"]
    ratio = f"quality.{name}.perplexity.to_original"
    return Evaluation(
        artifact=name,
        method=numbers.quote(path, "/method"),
        kept=one.kept,
        size=take("/artifact_bytes", "B"),
        perplexity=perplexity,
        to_original=numbers.derive("a / b", [perplexity, original], "×", ratio) if compared else None,
        divergence=take("/divergence/kld", "nat") if compared else None,
        error=take("/divergence/kld_error", "nat") if compared else None,
        same_top=take("/divergence/same_top_percent", "%") if compared else None,
        second=take("/llama_cpp/kld", "nat") if one.llama_cpp else None,
        fastest=next(((one.name, own.median) for one, own in ranking if one.artifact == name), None),
        unbeaten=compared and not any(_beats(other, one) for other in read.values()),
    )


def _beats(other: result.Quality, one: result.Quality) -> bool:
    """Whether ``other`` is no larger and no further from the original, and better in one of the two."""
    if other.divergence is None or one.divergence is None:
        return False
    mine, its = (one.artifact_bytes, one.divergence.kld), (other.artifact_bytes, other.divergence.kld)
    return its != mine and its[0] <= mine[0] and its[1] <= mine[1]


def _second_way(evaluations: Sequence[Evaluation]) -> tuple[Sentence, ...]:
    """Why llama-perplexity's divergence is another one, where it was taken."""
    if not any(one.second for one in evaluations):
        return ()
    return (
        say(
            "llama-perplexity computes with llama.cpp's CPU kernels, which round activations too: of a "
            "quantized GGUF its divergence is as a rule larger."
        ),
    )


def _bug(numbers: Numbers, study: Study, evaluations: Sequence[Evaluation]) -> tuple[Sentence, ...]:
    """What AutoFP8's calibration bug does, if both ways to calibrate were evaluated."""
    found = {one.artifact.removeprefix("fp8-"): one.divergence for one in evaluations if one.divergence}
    if "fp8" in found:
        found[study.fp8.activation_scales] = found["fp8"]
    if BUGGY not in found or MENDED not in found or study.fp8.activation_scheme != "static":
        return ()
    pair = [found[BUGGY], found[MENDED]]
    ratio = numbers.derive("a / b", pair, "×", "quality.autofp8_bug")
    text = (
        "With AutoFP8's own calibration (autofp8) the FP8 checkpoint's divergence is {}, without its bug "
        "(corrected) {}: the first is {} the second."
    )
    return (say(text, *pair, ratio),)
