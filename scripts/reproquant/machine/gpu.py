"""The NVIDIA GPUs of this machine, as its driver (NVML) tells them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pynvml

from reproquant.errors import ToolError

BY_BUS = "PCI_BUS_ID"
"""``CUDA_DEVICE_ORDER`` that numbers GPUs by their place on the bus, as NVML does."""


@dataclass(frozen=True)
class Gpu:
    """One GPU: the product's name, compute capability ("7.0"), memory in bytes, driver and UUID.

    ``persistence`` says whether the driver keeps it awake between programs; null where it isn't told.
    """

    index: int
    name: str
    compute_capability: str
    memory_bytes: int
    driver: str
    uuid: str
    persistence: bool | None

    def describe(self) -> dict[str, Any]:
        """This GPU as JSON data."""
        return asdict(self)


@contextmanager
def driver() -> Iterator[list[Any]]:
    """NVML's handles of all GPUs, in its order, while it is open; none where there is no NVIDIA driver.

    Raises ToolError if the driver gives an error for one of them, or for what is asked meanwhile: a GPU
    may have fallen off the bus.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield []
        return
    try:
        yield [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        raise ToolError(
            "NVIDIA driver",
            f"it gives an error for a GPU: {error}",
            "see what nvidia-smi says, and dmesg of Xid; a lost GPU is back after a reboot",
        ) from error
    finally:
        pynvml.nvmlShutdown()


def asked(question: str, *of: Any) -> Any:
    """NVML's answer to a question that not every GPU knows; None where it doesn't."""
    try:
        return getattr(pynvml, question)(*of)
    except pynvml.NVMLError:
        return None


def gpus() -> list[Gpu]:
    """All GPUs that the driver shows, in NVML's order; empty where there is no NVIDIA driver."""
    with driver() as handles:
        return [_gpu(index, handle) for index, handle in enumerate(handles)]


def visible_devices(count: int) -> str:
    """``CUDA_VISIBLE_DEVICES`` for a program that may use ``count`` GPUs; empty hides them all.

    The first of those that this process may use itself: a scheduler may have
    given it others than 0, 1, …. Raises ToolError if they are fewer: an engine
    that splits a model by layers would run on them all the same.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    own = [str(index) for index in range(count)] if given is None else list(filter(None, given.split(",")))
    if len(own) < count:
        raise ToolError(
            "CUDA_VISIBLE_DEVICES",
            f"'{given}' shows {len(own)} GPUs of the {count} that the subject has",
            "unset it, name as many, or lower the subject's gpus",
        )
    return ",".join(own[:count])


def shown(count: int) -> dict[str, str]:
    """The variables by which a program sees ``count`` GPUs, with CUDA's numbers in NVML's order.

    CUDA's own order is the fastest first, so among different cards the one that runs the program would
    be another than the one that is watched.
    """
    order = {"CUDA_DEVICE_ORDER": BY_BUS} if count else {}
    return {**order, "CUDA_VISIBLE_DEVICES": visible_devices(count)}


def indices(visible: str, uuids: Sequence[str]) -> list[int]:
    """Places in NVML's order of the GPUs that a ``CUDA_VISIBLE_DEVICES`` names, by number or by UUID.

    A UUID may be cut short. What names no whole GPU, such as a part of one
    (MIG), is left out.
    """
    found = []
    for word in filter(None, (part.strip() for part in visible.split(","))):
        if word.isdigit():
            found += [int(word)] if int(word) < len(uuids) else []
        else:
            found += [place for place, uuid in enumerate(uuids) if uuid.startswith(word)][:1]
    return found


def _gpu(index: int, handle: Any) -> Gpu:
    mode = asked("nvmlDeviceGetPersistenceMode", handle)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        compute_capability=f"{major}.{minor}",
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        driver=pynvml.nvmlSystemGetDriverVersion(),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        persistence=None if mode is None else bool(mode),
    )
