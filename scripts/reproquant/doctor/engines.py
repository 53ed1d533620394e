"""Checks of what the engines need: driver, compiler, a vLLM that fits the GPU, and pins that don't move."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reproquant import external
from reproquant.doctor.check import MEASURING, Check, Verdict, check
from reproquant.doctor.reading import Reading
from reproquant.engines.compatibility import Row, expectations
from reproquant.errors import StudyError, ToolError
from reproquant.study import External, InContainer, Study
from reproquant.toolchain import container

OLDEST_CUDA = (12, 0)
BF16_FROM = (8, 0)
MOVING = re.compile(r"(^|[:@/=])(latest|main|master|nightly)$")
IMAGE_TAG = re.compile(r"^[\w.-]+(/[\w.-]+)+:[\w.-]+$")


def driver(study: Study, reading: Reading) -> Iterator[Check]:
    """A driver that runs CUDA 12 programs."""
    if not study.machine.gpus or reading.driver is None:
        return
    cuda = reading.driver.cuda
    yield check(
        "driver",
        cuda >= OLDEST_CUDA,
        f"{reading.driver.version}, for CUDA {cuda[0]}.{cuda[1]}",
        "CUDA 12.0 or newer (R525)",
        "install a newer driver; for Volta the R580 branch, the last that knows it",
        "impossible",
        MEASURING,
    )


def compiler(study: Study, reading: Reading) -> Iterator[Check]:
    """An nvcc that can make machine code for the study's GPUs, and code that the GPUs found can run."""
    if study.llama_cpp.backend != "cuda":
        return
    wanted = ", ".join(f"sm_{architecture}" for architecture in study.llama_cpp.cuda_architectures)
    if isinstance(reading.toolkit, ToolError):
        error = reading.toolkit
        found = f"{error.where}: {error.reason}"
        yield Check("nvcc", "impossible", found, wanted, error.remedy, ("build_llama_cpp",))
    elif reading.toolkit is not None:
        yield Check("nvcc", "ok", f"{reading.toolkit.version} in {reading.toolkit.root}", wanted)
    if reading.capability:
        number = int(reading.capability.replace(".", ""))
        built = study.llama_cpp.cuda_architectures
        yield check(
            "CUDA architectures",
            number in built,
            f"sm_{number} in this machine",
            f"code for it; the study builds {wanted or 'what CMake picks'}",
            f"set llama_cpp.cuda_architectures to [{number}]: else kernels are compiled at start or never",
            "impossible" if built and number < min(built) else "warning",
            MEASURING,
        )


def vllm(study: Study, reading: Reading) -> Iterator[Check]:
    """For every vLLM subject what the compatibility table says of this version on this GPU."""
    rows = expectations(study, reading.capability if study.machine.gpus else None)
    on = reading.capability or study.machine.compute_capability
    for name, row in rows.items():
        yield _expected(study, name, row)
        if row.verdict == "works":
            yield from _needs(study, name, row)
    if rows and study.machine.gpus and on and study.vllm.dtype == "bfloat16":
        yield check(
            "vLLM's dtype",
            tuple(map(int, on.split("."))) >= BF16_FROM,
            "bfloat16",
            "float16 below compute capability 8.0",
            "set vllm.dtype to float16",
        )


def _expected(study: Study, name: str, row: Row) -> Check:
    title = f"vLLM {study.vllm.version}, {name}"
    verdicts: dict[str, Verdict] = {"works": "ok", "unknown": "unknown"}
    verdict = verdicts.get(row.verdict, "warning")
    needed = "a version that works on this machine"
    if row.verdict == "refused" and study.subject(name).expected == "unsupported":
        verdict, needed = "ok", "a refusal, as the study expects"
    remedy = {
        "refused": "leave the subject out, pin another vLLM, or expect: unsupported, to record the refusal",
        "slow-path": "pin a vLLM whose kernels are made for this GPU; CONTRIBUTING.md says how",
    }
    return Check(
        title,
        verdict,
        f"{row.verdict}: {row.why} (known from: {row.known_from})",
        needed,
        remedy.get(row.verdict, "") if verdict == "warning" else "",
    )


def _needs(study: Study, name: str, row: Row) -> Iterator[Check]:
    given = {*study.vllm.arguments, *study.vllm.environment_variables, *study.subject(name).arguments}
    if missing := [word for word in row.needs if word not in given]:
        yield Check(
            f"vLLM's switches, {name}",
            "warning",
            f"{', '.join(missing)} not given",
            ", ".join(row.needs),
            "add them to vllm.arguments or environment_variables: only so this version works on this GPU",
        )


def pythons(study: Study, reading: Reading) -> Iterator[Check]:
    """Every Python of the user's own can do the work that the study gives it."""
    for role in study.roles:
        if not isinstance(study.environments.of(role), External):
            continue
        title, needed = f"environments.{role}", "a Python with what the work needs"
        try:
            found = external.check_role(study, role)
            yield Check(title, "ok", f"Python {found['python']}, {len(found['packages'])} packages", needed)
        except StudyError as error:
            yield Check(title, "impossible", f"{error.where}: {error.reason}", needed, error.remedy)


def containers(study: Study, reading: Reading) -> Iterator[Check]:
    """The tool that runs vLLM's container answers, and the image is here or will be pulled."""
    chosen = study.environments.vllm
    if not isinstance(chosen, InContainer) or "vllm" not in study.roles:
        return
    title, needed = container.KEY, "a tool that answers, and the image"
    settings = chosen.container
    if problem := container.unready(settings.tool):
        needing = ("read_vllm", *MEASURING)
        yield Check(title, "impossible", problem.reason, needed, problem.remedy, needing)
        return
    yield check(
        title,
        container.present(settings),
        f"{settings.tool}, {settings.image}",
        needed,
        f"{settings.tool} pull {settings.image}, or let the run do it",
    )


def pins(study: Study, reading: Reading) -> Iterator[Check]:
    """Nothing in the study that somebody else can change: a branch, ``latest``, an image's tag."""
    moving = sorted({text for text in _texts(study.dump()) if moves(text)})
    yield check(
        "pins",
        not moving,
        ", ".join(moving) or "commits, exact versions and digests",
        "nothing that moves",
        "name a commit, or an image by digest (NAME@sha256:…): what a tag or a branch means can change",
    )


def moves(text: str) -> bool:
    """Whether a text of a study names something that can come to mean another thing."""
    return bool(MOVING.search(text) or IMAGE_TAG.match(text))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
