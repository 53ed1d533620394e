"""Checks of room: the model can be had, and disk and memories hold what the study makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from reproquant.doctor.check import MEASURING, Check, check
from reproquant.doctor.reading import Reading, Source, locks
from reproquant.engines.compatibility import expectations
from reproquant.study import Study

GB = 1_000_000_000
NEEDS = Path(__file__).with_name("needs.yaml")


class Needs(BaseModel):
    """The figures of needs.yaml; what they mean stands there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    environment_gb: float
    vllm_gb: dict[str, float]
    build_gb: dict[str, float]
    embedded_model_gb: float
    fp8_of_16_bits: float
    spare: float
    vllm_memory_share: float
    host_memory_gb: float


@cache
def needs() -> Needs:
    """needs.yaml, validated."""
    return Needs.model_validate(yaml.safe_load(NEEDS.read_text(encoding="utf-8")))


def model(study: Study, reading: Reading) -> Iterator[Check]:
    """The model, and each checkpoint that others have quantized, lies here or its source answers."""
    yield _obtainable("model", study.model.source, reading.source, reading, "fetch_model")
    for name, source in reading.checkpoints.items():
        kind = study.checkpoints[name].source
        yield _obtainable(f"checkpoints.{name}", kind, source, reading, "fetch_checkpoint")


def _obtainable(key: str, kind: str, source: Source, reading: Reading, stage: str) -> Check:
    mount = " (in a container: an image holds no weights, so mount the folder, -v HOST:CONTAINER)"
    remedies = {
        "local": f"correct {key}.local.path" + (mount if reading.host.in_container else ""),
        "hub": f"correct {key}.hub, or look at the network, HF_ENDPOINT and HF_HUB_OFFLINE; without network "
        "copy the Hub cache of a machine that has it",
    }
    return check(
        key,
        source.problem is None,
        source.problem or "nothing in the way",
        f"from {kind}",
        remedies.get(kind, ""),
        "impossible" if source.hopeless else "warning",
        (stage,),
    )


def disk(study: Study, reading: Reading) -> Iterator[Check]:
    """Room for the whole study: checkpoints and GGUF files, and in the store builds and environments."""
    files = file_bytes(study, reading)
    tools = tool_bytes(study, reading.environments)
    free, of_store = reading.host.free_disk_bytes + reading.host.results_bytes, reading.host.store_disk_bytes
    if of_store is not None:
        yield _room("disk of the store", of_store, tools, "point REPROQUANT_STORE at a larger disk")
    if files is None:
        depends = "depends on the model's size, which isn't known yet"
        yield Check("disk", "unknown", f"{free / GB:.0f} GB", depends)
        return
    need = files + (tools if of_store is None else 0)
    yield _room("disk", free, need, "put results/ and the store (REPROQUANT_STORE, HF_HOME) on a larger disk")


def _room(name: str, free: int, need: int, remedy: str) -> Check:
    found = f"{free / GB:.0f} GB free or already used by this study"
    needed = f"{need / GB:.0f} GB"
    return check(name, free >= need, found, needed, f"free some space, or {remedy}", "impossible")


def file_bytes(study: Study, reading: Reading) -> int | None:
    """What a study's results take, roughly; None if the size of the model or of a checkpoint isn't known."""
    weights = reading.source.weight_bytes
    if weights is None and study.model.source == "embedded":
        weights = int(needs().embedded_model_gb * GB)
    others = [source.weight_bytes for source in reading.checkpoints.values()]
    if weights is None or None in others:
        return None
    quantized = sum(bits(type) / 16 for type in study.gguf.quantizations)
    own = weights * (2 + needs().fp8_of_16_bits + quantized)
    return int((own + sum(size or 0 for size in others)) * (1 + needs().spare))


def tool_bytes(study: Study, here: frozenset[str] = frozenset()) -> int:
    """What builds and environments take, roughly, without the environments that are ``here`` already."""
    known = needs()
    of_vllm = known.vllm_gb["gpu" if study.machine.gpus else "cpu"]
    sizes = {
        name: of_vllm if name == study.environments.vllm else known.environment_gb for name in locks(study)
    }
    missing = sum(size for name, size in sizes.items() if name not in here)
    return int((missing + known.build_gb[study.llama_cpp.backend]) * GB * (1 + known.spare))


def bits(type: str) -> float:
    """Bits per weight of a quantization, at most: Q4_K_M is a mix that ends below 5."""
    digits = re.search(r"Q(\d)", type)
    return float(digits[1]) + 1 if digits else {"BF16": 16.0, "F32": 32.0}[type]


def memory(study: Study, reading: Reading) -> Iterator[Check]:
    """Main memory: the converter's and the quantizer's share, and on a CPU the weights themselves."""
    need = int(needs().host_memory_gb * GB)
    if not study.machine.gpus:
        need += reading.source.weight_bytes or 0
    found = reading.host.memory_bytes
    yield check(
        "memory",
        found >= need,
        f"{found / GB:.0f} GB",
        f"{need / GB:.0f} GB",
        "run on a machine with more memory, or study a smaller model",
    )


def gpu_memory(study: Study, reading: Reading) -> Iterator[Check]:
    """Every subject's weights fit the GPUs that it is placed on."""
    weights = reading.source.weight_bytes
    if not study.machine.gpus or not reading.gpus or weights is None:
        return
    smallest = min(gpu.memory_bytes for gpu in reading.gpus)
    refused = {
        name for name, row in expectations(study, reading.capability).items() if row.verdict == "refused"
    }
    tight = []
    for subject in study.subjects:
        if subject.gpus and subject.name not in refused:
            share = needs().vllm_memory_share if subject.engine == "vllm" else 1.0
            size = _served(subject.artifact, weights, reading)
            if size > subject.gpus * smallest * share:
                tight.append(f"{subject.name} ({size / GB:.1f} GB on {subject.gpus} GPUs)")
    yield check(
        "GPU memory",
        not tight,
        f"{smallest / GB:.1f} GB a GPU" + (f", too little for {', '.join(tight)}" if tight else ""),
        "room for every subject's weights",
        "give these subjects more GPUs or a smaller artifact, or leave them out",
        "impossible",
        MEASURING,
    )


def _served(artifact: str, weights: int, reading: Reading) -> float:
    """Bytes of what a subject serves, from the weights' at 16 bits; 0 where nobody knows them."""
    if artifact in reading.checkpoints:
        return reading.checkpoints[artifact].weight_bytes or 0
    if artifact in ("checkpoint", "f16"):
        return weights
    return weights * (needs().fp8_of_16_bits if artifact == "fp8" else bits(artifact) / 16)
