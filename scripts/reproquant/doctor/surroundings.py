"""Checks of what is around the engines: a container, the CPU's governor, Windows."""

from __future__ import annotations

from collections.abc import Iterator

from reproquant.doctor.check import Check, check
from reproquant.doctor.reading import Reading
from reproquant.study import InContainer, Study

GIB = 1 << 30


def shared_memory(study: Study, reading: Reading) -> Iterator[Check]:
    """NCCL and vLLM's workers exchange data through /dev/shm; docker gives a container 64 MiB of it.

    A container that this program starts has its own.
    """
    parallel = any(subject.engine == "vllm" and subject.gpus > 1 for subject in study.subjects)
    found = reading.host.shared_memory_bytes
    if not parallel or found is None or isinstance(study.environments.vllm, InContainer):
        return
    yield check(
        "/dev/shm",
        found >= GIB,
        f"{found / GIB:.2f} GiB",
        "1 GiB for vLLM on several GPUs",
        "start the container with --ipc=host or --shm-size=8g",
    )


def store(study: Study, reading: Reading) -> Iterator[Check]:
    """In a container the store should outlive it."""
    if reading.host.in_container:
        yield check(
            "store",
            not reading.host.store_in_container_layer,
            "in the container's own layer" if reading.host.store_in_container_layer else "on a mount",
            "on a mount",
            "mount a volume and point REPROQUANT_STORE and HF_HOME at it: what lies in the container's "
            "layer, downloads included, is lost with it",
        )


def governor(study: Study, reading: Reading) -> Iterator[Check]:
    """The CPU's clock doesn't wander."""
    found = reading.host.governors
    if found is None:
        yield Check("CPU governor", "unknown", "the kernel doesn't tell", "performance")
        return
    yield check(
        "CPU governor",
        found == ("performance",),
        ", ".join(found),
        "performance",
        "sudo cpupower frequency-set -g performance: a clock that follows the load spreads the rounds",
    )


def wsl(study: Study, reading: Reading) -> Iterator[Check]:
    """Under WSL a GPU works through WDDM, Windows' display driver, which adds time to every launch."""
    if study.machine.gpus:
        yield check(
            "system",
            not reading.host.under_wsl,
            "WSL: GPUs work through WDDM" if reading.host.under_wsl else "Linux",
            "Linux without WSL",
            "measure on Linux itself: under Windows' display driver launches are slower, and WSL has no TCC",
        )
