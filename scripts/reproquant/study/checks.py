"""What the sections of a study must have of each other: checks that raise StudyError with the key."""

from __future__ import annotations

import re
from collections.abc import Callable

from reproquant.errors import StudyError
from reproquant.files import repository
from reproquant.study.files import lock_path
from reproquant.study.sections import (
    CONTAINER,
    EXTERNAL,
    FP8_SETTINGS,
    OWN_CHECKPOINTS,
    Checkpoint,
    LlamaCpp,
    Model,
)
from reproquant.study.whole import Whole


def _picked_sections(study: Whole, where: str) -> None:
    parts: dict[str, Model | LlamaCpp | Checkpoint] = {"model": study.model, "llama_cpp": study.llama_cpp}
    parts |= {f"checkpoints.{name}": one for name, one in study.checkpoints.items()}
    for key, part in parts.items():
        if part.spec is None:
            raise StudyError(
                f"{where}: {key}.{part.source}",
                f"{key}.source is '{part.source}' but that section is missing",
                f"add the section {key}.{part.source}, or pick another source",
            )


def _artifacts_exist(study: Whole, where: str) -> None:
    known = {
        "llama_cpp": ("f16", *study.gguf.quantizations),
        "vllm": (*OWN_CHECKPOINTS, *study.checkpoints),
    }
    for name in set(study.checkpoints) & {*OWN_CHECKPOINTS, "f16"}:
        raise StudyError(
            f"{where}: checkpoints.{name}", "every study has an artifact of that name", "choose another"
        )
    names = [subject.name for subject in study.subjects]
    for index, subject in enumerate(study.subjects):
        key = f"{where}: subjects.{index}"
        if names.count(subject.name) > 1:
            raise StudyError(
                f"{key}.name", f"'{subject.name}' names two subjects", "give each subject its own name"
            )
        if subject.artifact not in known[subject.engine]:
            raise StudyError(
                f"{key}.artifact",
                f"{subject.engine} can't serve '{subject.artifact}' here",
                f"use one of {', '.join(known[subject.engine])}, or add to gguf.quantizations or checkpoints",
            )


def _emulated_is_fp8(study: Whole, where: str) -> None:
    for index, subject in enumerate(study.subjects):
        if subject.emulated and (subject.engine, subject.artifact) != ("vllm", "fp8"):
            raise StudyError(
                f"{where}: subjects.{index}.emulated",
                f"'{subject.name}' is {subject.artifact} in {subject.engine}; only FP8 in vLLM is emulated",
                "leave the key out, or set engine to vllm and artifact to fp8",
            )


def _evaluated_exist(study: Whole, where: str) -> None:
    known = ("f16", *study.gguf.quantizations, "fp8", "fp8-w8a16")
    for index, artifact in enumerate(study.quality.artifacts):
        if artifact not in known and study.fp8_variant(artifact) is None:
            values = ", ".join(value for values in FP8_SETTINGS.values() for value in values)
            raise StudyError(
                f"{where}: quality.artifacts.{index}",
                f"'{artifact}' is nothing that could be evaluated here",
                f"use one of {', '.join(known)}, or fp8-VALUE with one of {values}",
            )


def _autofp8_can_do_it(study: Whole, where: str) -> None:
    if study.fp8.backend == "native":
        return
    wanted = {"activation_scales": "autofp8", "fused_scales": "separate", "device": "cpu"}
    for key, value in wanted.items():
        if (given := getattr(study.fp8, key)) != value:
            raise StudyError(
                f"{where}: fp8.{key}",
                f"AutoFP8 itself can't do '{given}' here",
                f"set it to {value}, or fp8.backend to native",
            )


def _baseline_exists(study: Whole, where: str) -> None:
    names = [subject.name for subject in study.subjects]
    if study.benchmark.baseline not in names:
        raise StudyError(
            f"{where}: benchmark.baseline",
            f"'{study.benchmark.baseline}' is an unknown subject",
            f"use one of: {', '.join(names)}",
        )


def _files_exist(study: Whole, where: str) -> None:
    wanted = {
        "benchmark.prompt": repository() / study.benchmark.prompt,
        "fp8.calibration.text": repository() / study.fp8.calibration.text,
        "quality.text": repository() / study.quality.text,
        **{
            f"environments.{role}": lock_path(name)
            for role, name in study.environments.model_dump().items()
            if isinstance(name, str)
        },
    }
    for key, path in wanted.items():
        if not path.is_file():
            raise StudyError(
                f"{where}: {key}",
                f"there is no file {path}",
                "correct the name, or run 'make lock' for a new lock",
            )


def _placements_fit(study: Whole, where: str) -> None:
    for index, subject in enumerate(study.subjects):
        if subject.gpus > study.machine.gpus:
            raise StudyError(
                f"{where}: subjects.{index}.gpus",
                f"'{subject.name}' wants {subject.gpus} GPUs but machine.gpus is {study.machine.gpus}",
                "lower the subject's gpus or correct the machine",
            )


def _names_are_free(study: Whole, where: str) -> None:
    for role, name in study.environments.model_dump().items():
        if isinstance(name, str) and name.startswith((EXTERNAL, CONTAINER)):
            raise StudyError(
                f"{where}: environments.{role}",
                f"'{name}' begins as the results of environments without a lock do",
                "give the lock another name",
            )


def _vllm_is_the_locked_one(study: Whole, where: str) -> None:
    if not isinstance(study.environments.vllm, str):
        return
    lock = lock_path(study.environments.vllm)
    locked = re.search(r"^vllm(?:-cpu)?==([^\s;\\]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    if locked and locked[1] != study.vllm.version:
        raise StudyError(
            f"{where}: vllm.version",
            f"the study says {study.vllm.version} and envs/{lock.name} holds {locked[1]}",
            "give both the same: the version in the study, or the pin in the .in file and 'make lock'",
        )


CHECKS: tuple[Callable[[Whole, str], None], ...] = (
    _picked_sections,
    _artifacts_exist,
    _emulated_is_fp8,
    _evaluated_exist,
    _autofp8_can_do_it,
    _baseline_exists,
    _files_exist,
    _placements_fit,
    _names_are_free,
    _vllm_is_the_locked_one,
)
