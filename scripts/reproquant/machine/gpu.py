"""The NVIDIA GPUs of this machine, as its driver (NVML) tells them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import pynvml


@dataclass(frozen=True)
class Gpu:
    """One GPU: the product's name, compute capability ("7.0"), memory in bytes, driver and UUID."""

    index: int
    name: str
    compute_capability: str
    memory_bytes: int
    driver: str
    uuid: str

    def describe(self) -> dict[str, Any]:
        """This GPU as JSON data."""
        return asdict(self)


def gpus() -> list[Gpu]:
    """All GPUs that the driver shows, in NVML's order; empty where there is no NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        return [_gpu(index, driver) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def visible_devices(count: int) -> str:
    """``CUDA_VISIBLE_DEVICES`` for a program that may use ``count`` GPUs; empty hides them all.

    The first of those that this process may use itself: a scheduler may have
    given it others than 0, 1, ….
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    own = given.split(",") if given else [str(index) for index in range(count)]
    return ",".join(own[:count])


def _gpu(index: int, driver: str) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        compute_capability=f"{major}.{minor}",
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        driver=driver,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
    )
