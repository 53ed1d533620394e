"""Sensors: what each tells, and that one that isn't there is only itself not measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nvml_replay import play
from reproquant.machine import gpu
from reproquant.machine.sensors import CARD, CardSensors, HostSensors

ERRORS = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_TIMEOUT,
    pynvml.NVML_ERROR_UNKNOWN,
)
QUESTIONS = {
    "temperature_c": "nvmlDeviceGetTemperature",
    "event_reasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
    "energy_j": "nvmlDeviceGetTotalEnergyConsumption",
    "utilization_percent": "nvmlDeviceGetUtilizationRates",
    "memory_bytes": "nvmlDeviceGetMemoryInfo",
    "power_w": "nvmlDeviceGetPowerUsage",
}
STAT = "{pid} (a ) b) S 1 1 1 0 -1 0 0 0 0 0 {utime} {stime} 0 0 20 0 4 0 5 100 {pages} 0\n"


def failing(code: int) -> Callable[[], None]:
    def ask() -> None:
        raise pynvml.NVMLError(code)

    return ask


def card(patch: pytest.MonkeyPatch, **answers: Any) -> CardSensors:
    play(patch, lambda data: data["devices"][0].update(answers))
    with gpu.driver() as handles:
        return CardSensors(0, handles[0])


def test_a_card_tells_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    sensors = card(monkeypatch)
    assert sensors.read() == {
        "temperature_c": 38,
        "sm_mhz": 1530,
        "memory_mhz": 877,
        "event_reasons": 1,
        "power_w": 55.0,
        "energy_j": 1000.0,
        "utilization_percent": 0,
        "memory_bytes": 270008320,
    }
    assert sensors.missing == {} and sensors.read().keys() == {*CARD, "power_w"}


@pytest.mark.parametrize("code", ERRORS)
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_sensor_that_fails_is_null_with_the_drivers_words_and_the_others_go_on(
    name: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensors = card(monkeypatch, **{QUESTIONS[name]: failing(code)})
    found = sensors.read()
    assert found.pop(name) is None
    assert None not in found.values()
    assert sensors.missing == {name: str(pynvml.NVMLError(code))}


def test_even_a_driver_that_answers_nonsense_is_only_a_missing_sensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sensors = card(monkeypatch, nvmlDeviceGetUtilizationRates=lambda: "nonsense")
    assert sensors.read()["utilization_percent"] is None


def test_the_power_of_the_moment_is_preferred_to_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    field = {str(pynvml.NVML_FI_DEV_POWER_INSTANT): 301_500}
    sensors = card(monkeypatch, nvmlDeviceGetFieldValues=field)
    assert (sensors.read()["power_w"], sensors.power_from) == (301.5, "instant")
    assert card(monkeypatch).power_from == "usage"


def test_the_programs_on_a_card_are_told_by_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    assert card(monkeypatch, nvmlDeviceGetComputeRunningProcesses=[7, 8]).processes() == {7, 8}
    untold = card(monkeypatch, nvmlDeviceGetComputeRunningProcesses=failing(3))
    assert untold.processes() is None and "foreign_processes" in untold.missing


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with one process of 1 s of CPU time and 10 pages, and 4 s of busy cores."""
    folder = tmp_path / "proc"
    (folder / "77").mkdir(parents=True)
    grow(folder, 0.7, 0.3, 4)
    (folder / "cpuinfo").write_text("processor: 0\ncpu MHz\t\t: 2000.5\nprocessor: 1\ncpu MHz\t\t: 3000.5\n")
    return folder


def grow(proc: Path, user_s: float, system_s: float, busy_s: float) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    stat = STAT.format(pid=77, utime=int(user_s * tick), stime=int(system_s * tick), pages=10)
    (proc / "77/stat").write_text(stat)
    (proc / "stat").write_text(f"cpu  {int(busy_s * tick)} 0 0 999 50 0 0 5 0 0\ncpu0 1 2 3\n")


def host(proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostSensors:
    """Sensors whose clock goes on by two seconds with each reading."""
    moments = iter(range(10, 100, 2))
    monkeypatch.setattr("reproquant.machine.sensors.time.monotonic", lambda: float(next(moments)))
    return HostSensors({0, 1}, proc, tmp_path / "cpus", tmp_path / "powercap")


def test_the_cores_that_a_server_and_all_programs_keep_busy_are_told_over_the_time_between(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensors = host(proc, tmp_path, monkeypatch)
    first = sensors.read([77, 78])
    assert (first["server_cores"], first["busy_cores"]) == (None, None)
    assert first["rss_bytes"] == 10 * os.sysconf("SC_PAGE_SIZE")
    grow(proc, 2.7, 0.3, 9)
    second = sensors.read([77])
    assert (second["server_cores"], second["busy_cores"]) == (1.0, 2.5)
    assert sensors.read([])["rss_bytes"] is None


def test_the_frequency_is_the_governors_or_else_cpuinfos(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host(proc, tmp_path, monkeypatch).frequency_mhz() == 2500.5
    for core, khz in enumerate((1_000_000, 2_000_000)):
        folder = tmp_path / f"cpus/cpu{core}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
    assert host(proc, tmp_path, monkeypatch).frequency_mhz() == 1500
    (proc / "cpuinfo").unlink()
    (tmp_path / "cpus/cpu0/cpufreq/scaling_cur_freq").unlink()
    silent = host(proc, tmp_path, monkeypatch)
    assert silent.frequency_mhz() is None and "frequency_mhz" in silent.missing


def package(folder: Path, number: int, microjoule: int) -> None:
    zone = folder / f"intel-rapl:{number}"
    zone.mkdir(parents=True, exist_ok=True)
    (zone / "energy_uj").write_text(f"{microjoule}\n")
    (zone / "max_energy_range_uj").write_text("100000000\n")


def test_the_energy_of_all_packages_is_added_up_over_counters_that_start_again(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path / "powercap", 0, 90_000_000)
    package(tmp_path / "powercap", 1, 10_000_000)
    package(tmp_path / "powercap/nested", 0, 1)
    (tmp_path / "powercap/intel-rapl:0:0").mkdir()
    sensors = host(proc, tmp_path, monkeypatch)
    assert sensors.read([])["package_j"] == 0
    package(tmp_path / "powercap", 0, 5_000_000)
    package(tmp_path / "powercap", 1, 12_000_000)
    assert sensors.read([])["package_j"] == pytest.approx(15 + 2)
    assert sensors.missing == {}


def test_a_machine_without_readable_energy_counters_says_so(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensors = host(proc, tmp_path, monkeypatch)
    assert sensors.read([])["package_j"] is None
    assert "no energy counter (RAPL)" in sensors.missing["package_j"]
    (tmp_path / "powercap/intel-rapl:0/energy_uj").mkdir(parents=True)
    (tmp_path / "powercap/intel-rapl:0/max_energy_range_uj").write_text("1\n")
    unreadable = host(proc, tmp_path, monkeypatch)
    assert unreadable.read([])["package_j"] is None and "energy_uj" in unreadable.missing["package_j"]


def test_devices_are_found_by_number_or_by_uuid_and_parts_of_a_card_are_left_out() -> None:
    uuids = ("GPU-aa11", "GPU-bb22", "GPU-cc33")
    assert gpu.indices("2,0", uuids) == [2, 0]
    assert gpu.indices("GPU-bb, GPU-cc33", uuids) == [1, 2]
    assert gpu.indices("", uuids) == gpu.indices("7,MIG-1234", uuids) == []
