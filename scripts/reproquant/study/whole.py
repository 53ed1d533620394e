"""All sections of a study together, and what can be looked up in them."""

from __future__ import annotations

from pydantic import Field

from reproquant.errors import StudyError
from reproquant.study.sections import (
    FP8_SETTINGS,
    Benchmark,
    Checkpoint,
    CheckpointName,
    Environments,
    Fp8,
    Gguf,
    LlamaCpp,
    Machine,
    Model,
    Quality,
    Role,
    Section,
    Slug,
    Subject,
    Vllm,
)


class Whole(Section):
    """The sections, which fit together once ``Study.resolve`` has returned them."""

    name: Slug
    model: Model
    checkpoints: dict[CheckpointName, Checkpoint] = Field(
        default={}, description="by name; those that no subject serves are dropped"
    )
    machine: Machine
    llama_cpp: LlamaCpp
    environments: Environments
    gguf: Gguf
    fp8: Fp8
    quality: Quality = Quality()
    vllm: Vllm
    benchmark: Benchmark
    subjects: tuple[Subject, ...]

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that some stage needs; vLLM's only if a subject runs in it."""
        serves = any(subject.engine == "vllm" for subject in self.subjects)
        return ("converter", "fp8", "vllm") if serves else ("converter", "fp8")

    def subject(self, name: str) -> Subject:
        """The subject of that name; raises StudyError that lists the names there are."""
        for subject in self.subjects:
            if subject.name == name:
                return subject
        raise StudyError(
            f"subject {name}",
            f"study '{self.name}' has no such subject",
            f"use one of: {', '.join(s.name for s in self.subjects)}",
        )

    def fp8_variant(self, artifact: str) -> Fp8 | None:
        """The FP8 settings of ``fp8-VALUE``: the study's own with that value; None for any other artifact."""
        value = artifact.removeprefix("fp8-")
        setting = next((key for key, values in FP8_SETTINGS.items() if value in values), None)
        if value == artifact or setting is None:
            return None
        return self.fp8.model_copy(update={"backend": "native", setting: value})

    @property
    def fp8_role(self) -> Role:
        """Whose environment makes the FP8 checkpoint: AutoFP8 needs transformers, as the converter does."""
        return "converter" if self.fp8.backend == "autofp8" else "fp8"
