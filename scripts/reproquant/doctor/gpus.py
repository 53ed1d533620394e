"""Checks of the GPUs themselves: are they there, are they those of the study, are they free and cool."""

from __future__ import annotations

from collections.abc import Iterator

from reproquant.doctor.check import MEASURING, Check, check
from reproquant.doctor.reading import Reading
from reproquant.study import Study

WARM_BELOW_SLOWDOWN_C = 5
HOT_C = 85
"""Where the clocks of a V100 begin to drop, for a GPU that doesn't tell its own limit."""


def present(study: Study, reading: Reading) -> Iterator[Check]:
    """As many GPUs as the study places subjects on."""
    wanted, found = study.machine.gpus, len(reading.gpus)
    if wanted == 0:
        yield Check("GPUs", "ok", str(found), "none: the study runs on the CPU")
        return
    names = sorted({f"{gpu.name}, compute capability {gpu.compute_capability}" for gpu in reading.gpus})
    hidden = reading.cards_on_the_bus - found
    remedy = (
        f"the PCI bus has {reading.cards_on_the_bus} NVIDIA cards, but the driver shows {found}: install one "
        "that knows them (the R580 branch is the last for Volta), or give the container access (--gpus all)"
        if hidden > 0
        else f"run on a machine with {wanted} GPUs, or lower machine.gpus and the subjects' gpus in the study"
    )
    yield check(
        "GPUs",
        found >= wanted,
        " ".join([str(found), *(f"({name})" for name in names)]),
        str(wanted),
        remedy,
        "impossible",
        MEASURING,
    )


def same_as_studied(study: Study, reading: Reading) -> Iterator[Check]:
    """The GPU that the study is written for: its bandwidth and the article's claims are that one's."""
    if not study.machine.gpus or not reading.gpus:
        return
    if study.machine.gpu:
        names = sorted({gpu.name for gpu in reading.gpus})
        yield check(
            "GPU model",
            names == [study.machine.gpu],
            ", ".join(names),
            study.machine.gpu,
            "write a study for this GPU (machine, cuda_architectures, environments.vllm); without one, "
            "ceilings and claims are judged for the wrong card",
        )
    if wanted := study.machine.compute_capability:
        found = sorted({gpu.compute_capability for gpu in reading.gpus})
        yield check(
            "compute capability",
            found == [wanted],
            ", ".join(found),
            wanted,
            "correct machine.compute_capability, or run on the GPU that the study is for",
        )


def usable(study: Study, reading: Reading) -> Iterator[Check]:
    """Nothing that keeps programs from computing on a GPU, or that makes it a part of one."""
    if not study.machine.gpus or not reading.gpus:
        return
    closed = _those(reading, "compute_prohibited")
    split = _those(reading, "split_by_mig")
    busy = [
        f"GPU {index}: {', '.join(f'process {pid}' for pid in state.processes)}"
        for index, state in enumerate(reading.conditions)
        if state.processes
    ]
    yield check(
        "compute mode",
        not closed,
        f"prohibited on {closed}" if closed else "programs may compute",
        "programs may compute",
        "nvidia-smi -c 0",
        "impossible",
        MEASURING,
    )
    yield check(
        "MIG",
        not split,
        f"{split} split into instances" if split else "whole GPUs",
        "whole GPUs",
        "ask the administrator for whole GPUs: an instance has a part of the memory bandwidth",
    )
    yield check(
        "other programs on the GPUs",
        not busy,
        "; ".join(busy) or "none",
        "none",
        "end them, or wait: a measurement beside another program is rejected",
    )


def in_form(study: Study, reading: Reading) -> Iterator[Check]:
    """Cool, not throttled, and on all lanes of their slots."""
    if not study.machine.gpus or not reading.gpus:
        return
    told = [state for state in reading.conditions if state.temperature_c is not None]
    hottest = max((state.temperature_c or 0 for state in told), default=None)
    limits = [state.slowdown_c - WARM_BELOW_SLOWDOWN_C for state in told if state.slowdown_c]
    limit = min([HOT_C, *limits])
    if hottest is None:
        yield Check("temperature", "unknown", "NVML doesn't tell", f"below {limit} °C")
    else:
        yield check(
            "temperature",
            hottest < limit,
            f"{hottest} °C",
            f"below {limit} °C",
            "let the cards cool down and look at their fans and air flow: hot cards lower their clocks",
        )
    slowed = sorted({reason for state in reading.conditions for reason in state.throttled_by})
    yield check(
        "clocks",
        not slowed,
        f"held down by {', '.join(slowed)}" if slowed else "not held down",
        "not held down",
        "cool the cards, or look at the power cables, before measuring",
    )
    narrow = [
        f"GPU {index} on {state.lanes[0]} of {state.lanes[1]} lanes"
        for index, state in enumerate(reading.conditions)
        if state.lanes and state.lanes[0] < state.lanes[1]
    ]
    yield check(
        "PCIe width",
        not narrow,
        ", ".join(narrow) or "all lanes",
        "all lanes",
        "put the card in a slot with all lanes, or reseat it; decoding on one card hardly suffers, "
        "loading and two cards do",
    )


def _those(reading: Reading, what: str) -> str:
    return ", ".join(f"GPU {index}" for index, state in enumerate(reading.conditions) if getattr(state, what))
