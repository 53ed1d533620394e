"""What was read out of the engines before they were measured: machine code, capabilities, refusals."""

from __future__ import annotations

from dataclasses import dataclass

from reproquant.provenance.lineage import pointer
from reproquant.report.numbers import Number, Numbers, Quote

MACHINE_CODE = "llama_cpp/machine_code.json"
CAPABILITIES = "vllm/capabilities.json"


@dataclass(frozen=True)
class Kernels:
    """Kernels of one architecture whose names have ``part`` in them; all of them where it is None."""

    part: str | None
    kernels: Number
    code: Number


@dataclass(frozen=True)
class Architecture:
    """A program's machine code for one architecture, such as sm_70."""

    name: str
    images: Number
    kernels: tuple[Kernels, ...]


@dataclass(frozen=True)
class Program:
    """``images`` are all that the file holds, PTX (compute_70) too."""

    name: Quote
    size: Number
    images: tuple[tuple[str, Number], ...]
    architectures: tuple[Architecture, ...]


@dataclass(frozen=True)
class Minimum:
    """The capability from which on vLLM takes a quantization, as its source and as the table has it."""

    quantization: Quote
    source: Number
    table: Number


@dataclass(frozen=True)
class Capabilities:
    """What vLLM's source says about GPUs; no minimum is known of a version that the table doesn't have."""

    version: Quote
    minimums: tuple[Minimum, ...]
    refusals: tuple[Quote, ...]


@dataclass(frozen=True)
class Proofs:
    """Both are None in a study without CUDA and without vLLM."""

    program: Program | None
    capabilities: Capabilities | None


def read_proofs(numbers: Numbers) -> Proofs | None:
    """The proofs that the results hold; None if there are none."""
    program = _program(numbers) if numbers.has(MACHINE_CODE) else None
    capabilities = _capabilities(numbers) if numbers.has(CAPABILITIES) else None
    return Proofs(program, capabilities) if program or capabilities else None


def _program(numbers: Numbers) -> Program:
    data = numbers.read(MACHINE_CODE)

    def take(unit: str, *place: str) -> Number:
        id = ".".join(("machine_code", *place[place[0] == "machine_code" :]))
        return numbers.take(MACHINE_CODE, pointer(*place), unit, id)

    def kernels(part: str | None, *place: str) -> Kernels:
        return Kernels(part, take("", *place, "kernels"), take("B", *place, "code_bytes"))

    return Program(
        name=numbers.quote(MACHINE_CODE, "/program"),
        size=take("B", "bytes"),
        images=tuple((name, take("", "images", name)) for name in data["images"]),
        architectures=tuple(
            Architecture(
                name,
                take("", "machine_code", name, "images"),
                (
                    kernels(None, "machine_code", name),
                    *(kernels(part, "machine_code", name, "named", part) for part in code["named"]),
                ),
            )
            for name, code in data["machine_code"].items()
        ),
    )


def _capabilities(numbers: Numbers) -> Capabilities:
    data = numbers.read(CAPABILITIES)

    def minimum(index: int) -> Minimum:
        def take(key: str) -> Number:
            at = pointer("compared", index, key)
            return numbers.take(CAPABILITIES, at, "", f"capabilities.{index}.{key}")

        quantization = numbers.quote(CAPABILITIES, pointer("compared", index, "quantization"))
        return Minimum(quantization, take("source"), take("table"))

    return Capabilities(
        version=numbers.quote(CAPABILITIES, "/version"),
        minimums=tuple(map(minimum, range(len(data["compared"])))),
        refusals=tuple(
            numbers.quote(CAPABILITIES, pointer("refusals", index)) for index in range(len(data["refusals"]))
        ),
    )
