"""The files that the study made: how large, of what, and whether they are what their name says."""

from __future__ import annotations

from dataclasses import dataclass

from reproquant.provenance.lineage import pointer
from reproquant.report.facts import Fact, facts
from reproquant.report.numbers import Number, Numbers, Quote
from reproquant.study import Study


@dataclass(frozen=True)
class TensorType:
    """The tensors of one type in a GGUF."""

    type: str
    count: Number
    bytes: Number


@dataclass(frozen=True)
class Artifact:
    """A row of the artifact table; a checkpoint has no bits per weight, tensor types or promise."""

    name: str
    kind: str
    size: Number
    bits_per_weight: Number | None
    tensors: tuple[TensorType, ...]
    as_promised: Quote | None
    fallbacks: tuple[Fact, ...]
    facts: tuple[Fact, ...]


def artifacts(numbers: Numbers, study: Study) -> tuple[Artifact, ...]:
    """The checkpoints that were fetched, every GGUF that was made, and the FP8 checkpoint if it was made."""
    fetched = {"checkpoint": "model", **{name: f"checkpoints/{name}" for name in study.checkpoints}}
    found = [
        _checkpoint(numbers, name, path := f"{folder}/manifest.json", facts(numbers, path, "/source"))
        for name, folder in fetched.items()
    ]
    found += [
        _gguf(numbers, type)
        for type in ("f16", *study.gguf.quantizations)
        if numbers.has(f"gguf/{type}.inspect.json")
    ]
    if numbers.has("fp8/manifest.json"):
        about = facts(numbers, "fp8/facts.json") if numbers.has("fp8/facts.json") else []
        found.append(_checkpoint(numbers, "fp8", "fp8/manifest.json", about))
    return tuple(found)


def _checkpoint(numbers: Numbers, name: str, path: str, about: list[Fact]) -> Artifact:
    weights = [
        numbers.take(path, pointer("files", index, "bytes"), "B", f"{name}.{file['path']}.bytes")
        for index, file in enumerate(numbers.read(path)["files"])
        if file["path"].endswith(".safetensors")
    ]
    size = weights[0] if len(weights) == 1 else numbers.derive("sum", weights, "B", f"{name}.bytes")
    return Artifact(name, "safetensors", size, None, (), None, (), tuple(about))


def _gguf(numbers: Numbers, type: str) -> Artifact:
    path = f"gguf/{type}.inspect.json"
    data = numbers.read(path)
    tensors = tuple(
        TensorType(
            kind,
            numbers.take(path, pointer("tensors", kind, "count"), "", f"{type}.tensors.{kind}.count"),
            numbers.take(path, pointer("tensors", kind, "bytes"), "B", f"{type}.tensors.{kind}.bytes"),
        )
        for kind in data["tensors"]
    )
    shown = ("file_bytes", "bits_per_weight", "tensors", "as_promised", "fallbacks")
    return Artifact(
        name=type,
        kind="GGUF",
        size=numbers.take(path, "/file_bytes", "B", f"{type}.file_bytes"),
        bits_per_weight=numbers.take(path, "/bits_per_weight", "bit", f"{type}.bits_per_weight"),
        tensors=tensors,
        as_promised=numbers.quote(path, "/as_promised"),
        fallbacks=tuple(facts(numbers, path, "/fallbacks")),
        facts=tuple(facts(numbers, path, without=shown)),
    )
