"""How the GPUs are right now: heat, throttling, who uses them, how they hang on the bus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pynvml

from reproquant.machine.gpu import asked, driver

THROTTLING = {
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "heat (hardware)",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "heat (driver)",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "the power supply's brake signal",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "a hardware slowdown",
}
"""The reasons for low clocks that make figures worthless; idling and a power limit aren't among them."""


@dataclass(frozen=True)
class Condition:
    """One GPU's state; None is what this GPU or driver doesn't tell.

    Temperatures are in degrees Celsius; ``slowdown_c`` is where the hardware lowers its clocks;
    ``lanes`` the PCIe link's width now and at most; ``processes`` the ids of programs that compute on
    it, as far as this process may see them.
    """

    temperature_c: int | None
    slowdown_c: int | None
    throttled_by: tuple[str, ...]
    processes: tuple[int, ...]
    compute_prohibited: bool
    split_by_mig: bool
    lanes: tuple[int, int] | None


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver and the newest CUDA that it runs, as (major, minor)."""

    version: str
    cuda: tuple[int, int]


def conditions() -> list[Condition]:
    """The state of every GPU, in NVML's order; empty where there is no NVIDIA driver."""
    with driver() as handles:
        return [_condition(handle) for handle in handles]


def nvidia_driver() -> Driver | None:
    """The driver, or None where none answers."""
    with driver() as handles:
        number = asked("nvmlSystemGetCudaDriverVersion") if handles else None
        if number is None:
            return None
        return Driver(pynvml.nvmlSystemGetDriverVersion(), (number // 1000, number % 1000 // 10))


def _condition(handle: Any) -> Condition:
    reasons = asked("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    processes = asked("nvmlDeviceGetComputeRunningProcesses", handle) or []
    width = asked("nvmlDeviceGetCurrPcieLinkWidth", handle)
    widest = asked("nvmlDeviceGetMaxPcieLinkWidth", handle)
    mig = asked("nvmlDeviceGetMigMode", handle)
    return Condition(
        temperature_c=asked("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU),
        slowdown_c=asked(
            "nvmlDeviceGetTemperatureThreshold", handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        throttled_by=tuple(words for bit, words in THROTTLING.items() if reasons & bit),
        processes=tuple(process.pid for process in processes),
        compute_prohibited=asked("nvmlDeviceGetComputeMode", handle) == pynvml.NVML_COMPUTEMODE_PROHIBITED,
        split_by_mig=bool(mig and mig[0]),
        lanes=(width, widest) if width and widest else None,
    )
