"""What the doctor reads of a machine: everything it asks NVML, the kernel, nvcc and the Hub, at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TypeVar

import psutil
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import (
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from reproquant.errors import ToolError
from reproquant.files import repository, sha256_file, store
from reproquant.machine import host
from reproquant.machine.condition import Condition, Driver, conditions, nvidia_driver
from reproquant.machine.gpu import Gpu, gpus
from reproquant.machine.links import Links, links, nvidia_cards
from reproquant.model.hub.refusals import GARBAGE, KNOWN
from reproquant.model.local import missing_parts
from reproquant.model.synthetic import preset, tensors
from reproquant.study import Checkpoint, HubModel, LocalModel, Model, Study, SyntheticModel, lock_path
from reproquant.toolchain.cmake import Cuda, find_cuda

HUB_PATIENCE_S = 3.0
SIXTEEN_BITS = 2
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Source:
    """The model: its weights' bytes at 16 bits if known, and what stands in the way, for good or now."""

    weight_bytes: int | None
    problem: str | None = None
    hopeless: bool = False


@dataclass(frozen=True)
class Host:
    """The machine around the GPUs; sizes in bytes, None for what the kernel doesn't show.

    ``store_disk_bytes`` is what is free for the store where that is another disk than the results'.
    """

    memory_bytes: int
    free_disk_bytes: int
    store_disk_bytes: int | None
    results_bytes: int
    shared_memory_bytes: int | None
    governors: tuple[str, ...] | None
    under_wsl: bool
    in_container: bool
    store_in_container_layer: bool


@dataclass(frozen=True)
class Reading:
    """A machine as the doctor sees it. ``toolkit`` is the CUDA toolkit, or why there is none that will do;
    ``environments`` those of the study that the store holds already; ``checkpoints`` by name, their bytes
    as they are quantized.
    """

    gpus: tuple[Gpu, ...]
    conditions: tuple[Condition, ...]
    driver: Driver | None
    links: Links
    cards_on_the_bus: int
    host: Host
    toolkit: Cuda | ToolError | None
    source: Source
    environments: frozenset[str] = frozenset()
    checkpoints: Mapping[str, Source] = field(default_factory=dict)

    @property
    def capability(self) -> str | None:
        """The lowest compute capability of the GPUs found; None where there is none."""
        found = [gpu.compute_capability for gpu in self.gpus]
        return min(found, key=lambda text: tuple(map(int, text.split("."))), default=None)


def read(study: Study, results: Path) -> Reading:
    """Read this machine for a study, whose results go to ``results``; takes a few seconds at most."""
    cuda = study.llama_cpp.backend == "cuda"
    with ThreadPoolExecutor() as pool:  # each may wait for the Hub
        source, *others = pool.map(model_source, (study.model, *study.checkpoints.values()))
    return Reading(
        gpus=tuple(gpus()),
        conditions=tuple(conditions()),
        driver=nvidia_driver(),
        links=links(),
        cards_on_the_bus=nvidia_cards(),
        host=_host(results),
        toolkit=_toolkit(study) if cuda else None,
        source=source,
        environments=frozenset(name for name in locks(study) if _built(name)),
        checkpoints=dict(zip(study.checkpoints, others, strict=True)),
    )


def model_source(model: Model | Checkpoint) -> Source:
    """Whether a model can be had, without fetching it."""
    spec = model.spec
    if isinstance(spec, HubModel):
        return _hub(spec)
    if isinstance(spec, LocalModel):
        return _local(spec)
    if isinstance(spec, SyntheticModel):
        shape = spec.shape or preset(spec.preset or "")
        return Source(SIXTEEN_BITS * sum(prod(sizes) for _, sizes in tensors(shape)))
    return Source(None)


def locks(study: Study) -> set[str]:
    """The locks of the environments that the workflow builds itself."""
    chosen = map(study.environments.of, study.roles)
    return {environment for environment in chosen if isinstance(environment, str)}


def _built(environment: str) -> bool:
    digest = sha256_file(lock_path(environment))
    return any((store() / "environments").glob(f"{environment}-{digest[:12]}-*"))


def _host(results: Path) -> Host:
    found = host.governors()
    place, stored = _existing(results), _existing(store())
    same = place.stat().st_dev == stored.stat().st_dev
    return Host(
        memory_bytes=psutil.virtual_memory().total,
        free_disk_bytes=psutil.disk_usage(str(place)).free,
        store_disk_bytes=None if same else psutil.disk_usage(str(stored)).free,
        results_bytes=sum(path.stat().st_size for path in results.rglob("*") if path.is_file()),
        shared_memory_bytes=host.shared_memory_bytes(),
        governors=tuple(found) if found else None,
        under_wsl=host.under_wsl(),
        in_container=host.in_container(),
        store_in_container_layer=host.in_container() and stored.stat().st_dev == Path("/").stat().st_dev,
    )


def _existing(path: Path) -> Path:
    absolute = path.absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.exists())


def _toolkit(study: Study) -> Cuda | ToolError:
    try:
        return find_cuda(study.llama_cpp.cuda_toolkit, study.llama_cpp.cuda_architectures)
    except ToolError as error:
        return error


def _local(spec: LocalModel) -> Source:
    folder = (repository() / Path(spec.path).expanduser()).resolve()
    if not folder.is_dir():
        return Source(None, f"there is no directory {folder}", hopeless=True)
    if missing := missing_parts(folder):
        return Source(None, f"{folder} lacks {', '.join(missing)}", hopeless=True)
    return Source(sum(file.stat().st_size for file in folder.glob("*.safetensors")))


def _hub(spec: HubModel) -> Source:
    try:
        config = try_to_load_from_cache(spec.repository, "config.json", revision=spec.revision)
    except HFValidationError as error:
        return Source(None, f"no repository can have this name: {error}", hopeless=True)
    snapshot = Path(config).parent if isinstance(config, str) else None
    if snapshot and not missing_parts(snapshot):
        size = sum(file.stat().st_size for file in snapshot.glob("*.safetensors"))
        return Source(size)
    return within(HUB_PATIENCE_S, lambda: _asked_hub(spec)) or Source(
        None, f"the Hub gave no answer in {HUB_PATIENCE_S:g} s"
    )


def _asked_hub(spec: HubModel) -> Source:
    try:
        info = HfApi().model_info(
            spec.repository, revision=spec.revision, files_metadata=True, timeout=HUB_PATIENCE_S
        )
    except RevisionNotFoundError:
        return Source(None, "the repository has no such commit", hopeless=True)
    except RepositoryNotFoundError:
        return Source(None, "the Hub has no such repository, or it is private", hopeless=True)
    except OfflineModeIsEnabled:
        return Source(None, "HF_HUB_OFFLINE is set and the cache doesn't hold the model", hopeless=True)
    except (*KNOWN, *GARBAGE) as error:
        return Source(None, f"the Hub can't be reached ({type(error).__name__})")
    sizes = [file.size or 0 for file in info.siblings or [] if file.rfilename.endswith(".safetensors")]
    return Source(sum(sizes))


def within(seconds: float, ask: Callable[[], Answer]) -> Answer | None:
    """What ``ask`` returns, or None if it takes longer than that; a name lookup knows no limit of its own."""
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    asking.start()
    asking.join(seconds)
    return answers[0] if answers else None
