"""Which vLLM works on which GPU with which quantization: the rows of compatibility.yaml, looked up."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, model_validator

from reproquant.study import Study, Subject

TABLE = Path(__file__).with_name("compatibility.yaml")
CPU = "cpu"

Verdict = Literal["works", "refused", "slow-path", "unknown"]


def _range(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from None
    return text


Range = Annotated[str, AfterValidator(_range)]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Evidence(Part):
    """How a row is known: the strongest kind is a measurement of this project's own."""

    kind: Literal["measured", "machine code read", "compiled", "source read", "report read", "inferred"]
    what: str


class Row(Part):
    """One row of compatibility.yaml; what its keys mean stands at the top of that file."""

    vllm: Range
    capability: Literal["cpu"] | Range
    quantizations: tuple[str, ...]
    verdict: Verdict
    why: str
    words: str | None = None
    minimum: int | None = None
    needs: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...]

    @model_validator(mode="after")
    def _words_of_a_refusal(self) -> Row:
        if (self.verdict == "refused") != (self.words is not None):
            raise ValueError("a refusal has words, and nothing else has")
        return self

    @property
    def known_from(self) -> str:
        """The kinds of evidence, in words."""
        return "; ".join(sorted({item.kind for item in self.evidence})) or "nothing"

    def covers(self, version: str, capability: str, quantization: str) -> bool:
        """Whether the row speaks about this vLLM on this GPU ("7.0", or "cpu") with this quantization."""
        if CPU in (self.capability, capability):
            fits = self.capability == capability
        else:
            fits = capability in SpecifierSet(self.capability)
        return (
            fits
            and version in SpecifierSet(self.vllm)
            and bool({quantization, "any"} & {*self.quantizations})
        )


@cache
def table() -> tuple[Row, ...]:
    """The rows in the order in which they count."""
    data = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return TypeAdapter(tuple[Row, ...]).validate_python(data)


def look_up(version: str, capability: str, quantization: str) -> Row:
    """What is known about one vLLM on one GPU; where no row speaks, a row that says so."""
    for row in table():
        if row.covers(version, capability, quantization):
            return row
    where = "the CPU" if capability == CPU else f"compute capability {capability}"
    return Row(
        vllm=f"=={version}",
        capability=capability if capability == CPU else f"=={capability}",
        quantizations=(quantization,),
        verdict="unknown",
        why=f"Nobody has looked at vLLM {version} with {quantization} on {where} yet.",
        evidence=(),
    )


def quantization_of(study: Study, subject: Subject) -> str:
    """vLLM's name for what a subject's artifact is quantized with."""
    if subject.artifact in study.checkpoints:
        return study.checkpoints[subject.artifact].quantization
    if subject.emulated:
        return f"{subject.artifact}-emulated"
    return "none" if subject.artifact == "checkpoint" else subject.artifact


def expectations(study: Study, capability: str | None = None) -> dict[str, Row]:
    """The row of every vLLM subject, on the GPU that the study names or one of another capability."""
    own = study.machine.compute_capability if study.machine.gpus else CPU
    on = capability or own
    return {
        subject.name: look_up(study.vllm.version, on, quantization_of(study, subject))
        for subject in study.subjects
        if subject.engine == "vllm" and on is not None
    }
