"""What can be read of the machine at one moment: GPUs through NVML, the CPU through /proc and /sys.

A sensor that isn't there is no error: its value is null and the reason is kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pynvml

Values = dict[str, float | None]

PROC = Path("/proc")
CPUS = Path("/sys/devices/system/cpu")
POWERCAP = Path("/sys/class/powercap")
UTIME, STIME, RSS = 11, 12, 21
"""Places in /proc/PID/stat, counted behind the command's closing bracket; ticks, ticks, pages."""


def _instant_power_w(card: Any) -> float:
    (field,) = pynvml.nvmlDeviceGetFieldValues(card, [pynvml.NVML_FI_DEV_POWER_INSTANT])
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    return float(field.value.uiVal) / 1000


def _power_w(card: Any) -> float:
    return float(pynvml.nvmlDeviceGetPowerUsage(card)) / 1000


CARD: dict[str, Callable[[Any], float]] = {
    "temperature_c": lambda card: pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU),
    "sm_mhz": lambda card: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM),
    "memory_mhz": lambda card: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_MEM),
    "event_reasons": lambda card: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(card),
    "energy_j": lambda card: pynvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1000,
    "utilization_percent": lambda card: pynvml.nvmlDeviceGetUtilizationRates(card).gpu,
    "memory_bytes": lambda card: pynvml.nvmlDeviceGetMemoryInfo(card).used,
}
"""What each column of a card is; ``event_reasons`` are NVML's bits for why its clocks are as they are."""


class CardSensors:
    """The sensors of one GPU; ``missing`` has the words of each that last gave nothing.

    ``power_from`` says what ``power_w`` is: the power of the moment, or what
    nvmlDeviceGetPowerUsage gives, which on newer parts is a mean over a second.
    """

    def __init__(self, index: int, handle: Any) -> None:
        self.index = index
        self._handle = handle
        self.missing: dict[str, str] = {}
        instant = self._ask("power_w", _instant_power_w) is not None
        self.power_from = "instant" if instant else "usage"
        self._questions = {**CARD, "power_w": _instant_power_w if instant else _power_w}
        self.missing.clear()

    def read(self) -> Values:
        """Every column's value now."""
        return {name: self._ask(name, question) for name, question in self._questions.items()}

    def processes(self) -> frozenset[int] | None:
        """The ids of the programs that compute on the card, as the driver numbers them; null if untold."""
        try:
            return frozenset(
                process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            )
        except Exception as error:
            self.missing["foreign_processes"] = str(error)
            return None

    def _ask(self, name: str, question: Callable[[Any], float]) -> float | None:
        """A sensor's answer; whatever goes wrong in a driver is a reason why there is none."""
        try:
            return question(self._handle)
        except Exception as error:
            self.missing[name] = str(error)
            return None


class HostSensors:
    """The CPU's sensors; rates are over the time since the reading before, so the first one has none.

    ``cores`` are those whose frequency is told. ``missing`` has a reason for each
    sensor that isn't there.
    """

    def __init__(
        self, cores: Iterable[int], proc: Path = PROC, cpus: Path = CPUS, powercap: Path = POWERCAP
    ) -> None:
        self.missing: dict[str, str] = {}
        self._proc = proc
        self._frequencies = [cpus / f"cpu{core}/cpufreq/scaling_cur_freq" for core in sorted(cores)]
        self._packages = self._readable_packages(powercap)
        self._cpu_s: dict[int, float] = {}
        self._busy_s: float | None = None
        self._energy_uj: list[int] = []
        self._package_j = 0.0
        self._moment = 0.0

    def read(self, members: Sequence[int]) -> Values:
        """Cores that all programs and those of ``members`` kept busy, their resident bytes, joules so far."""
        before, self._moment = self._moment, time.monotonic()
        passed = self._moment - before if before else None
        usage = {pid: found for pid in members if (found := self._usage(pid))}
        cpu_s = {pid: seconds for pid, (seconds, _) in usage.items()}
        grown = sum(cpu_s[pid] - self._cpu_s[pid] for pid in cpu_s.keys() & self._cpu_s.keys())
        self._cpu_s = cpu_s
        busy_before, self._busy_s = self._busy_s, self._all_busy_s()
        busy = None if None in (busy_before, self._busy_s) else (self._busy_s or 0) - (busy_before or 0)
        return {
            "server_cores": grown / passed if passed and usage else None,
            "busy_cores": busy / passed if passed and busy is not None else None,
            "rss_bytes": sum(size for _, size in usage.values()) if usage else None,
            "package_j": self._joules(),
        }

    def frequency_mhz(self) -> float | None:
        """The mean frequency of the cores: the kernel's governor's figure, else /proc/cpuinfo's."""
        try:
            if self._frequencies and self._frequencies[0].is_file():
                found = [int(path.read_text()) / 1000 for path in self._frequencies]
            else:
                lines = (self._proc / "cpuinfo").read_text().splitlines()
                found = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
            return sum(found) / len(found)
        except (OSError, ValueError, ZeroDivisionError) as error:
            self.missing["frequency_mhz"] = str(error)
            return None

    def _usage(self, pid: int) -> tuple[float, int] | None:
        """CPU seconds and resident bytes of a process; None if it is gone."""
        try:
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            ticks = int(fields[UTIME]) + int(fields[STIME])
            return ticks / os.sysconf("SC_CLK_TCK"), int(fields[RSS]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return None

    def _all_busy_s(self) -> float | None:
        """Seconds that all cores together were busy so far, idling and waiting for disks left out."""
        try:
            user, nice, system, _, _, irq, softirq, *_ = (
                int(word) for word in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:]
            )
        except (OSError, ValueError) as error:
            self.missing["busy_cores"] = str(error)
            return None
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")

    def _readable_packages(self, powercap: Path) -> list[tuple[Path, int]]:
        """The energy counters of the CPU packages (RAPL) with where they start again, in microjoule."""
        zones = [zone for zone in sorted(powercap.glob("*-rapl:*")) if zone.name.count(":") == 1]
        if not zones:
            self.missing["package_j"] = f"there is no energy counter (RAPL) in {powercap}"
            return []
        try:
            found = [(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text())) for zone in zones]
            for counter, _ in found:
                counter.read_text()
        except (OSError, ValueError) as error:
            self.missing["package_j"] = str(error)
            return []
        return found

    def _joules(self) -> float | None:
        """Joules of all packages since the first reading; a counter that started again is followed."""
        try:
            now = [int(counter.read_text()) for counter, _ in self._packages]
        except (OSError, ValueError) as error:
            self.missing["package_j"] = str(error)
            return None
        for before, after, (_, range_uj) in zip(self._energy_uj or now, now, self._packages, strict=True):
            self._package_j += (after - before + (range_uj if after < before else 0)) / 1e6
        self._energy_uj = now
        return self._package_j if now else None
