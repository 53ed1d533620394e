"""The host: processor, cores, memory, kernel and load; no host name, no user name."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from reproquant.files import repository, store
from reproquant.machine import gpu

GOVERNORS = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))


def describe() -> dict[str, Any]:
    """This host as JSON data; bytes are bytes, what can't be read is null."""
    return {
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "cores_in_affinity": len(os.sched_getaffinity(0)),
        "cores_available": cores_available(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": _system(),
        "kernel": platform.release(),
        "cpu_governors": governors(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def fingerprint() -> dict[str, Any]:
    """What makes a measurement this machine's: processor, cores, memory, kernel, GPUs and their driver."""
    return {
        "cpu": cpu_model(),
        "cores": cores_available(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "kernel": platform.release(),
        "gpus": [(found.uuid, found.driver) for found in gpu.gpus()],
    }


def cores_available() -> int:
    """Cores that this process may keep busy: its affinity, cut to the container's CPU quota."""
    quota = _cpu_quota()
    affinity = len(os.sched_getaffinity(0))
    return affinity if quota is None else max(1, min(affinity, math.floor(quota)))


def busy_share(interval_s: float = 0.5) -> float:
    """The share of all cores that was busy during the next ``interval_s`` seconds, 0 to 1."""
    return psutil.cpu_percent(interval=interval_s) / 100


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """The processor's name as the kernel gives it; null where it gives none (most arm64)."""
    return _value_of("model name", cpuinfo, ":")


def governors(root: Path = GOVERNORS) -> list[str] | None:
    """The distinct frequency governors of the cores; null where the kernel shows none."""
    files = sorted(root.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    return sorted({file.read_text().strip() for file in files}) or None


def under_wsl(release: Path = Path("/proc/sys/kernel/osrelease")) -> bool:
    """Whether this is the Windows Subsystem for Linux, where GPUs work through Windows' display driver."""
    return "microsoft" in release.read_text(encoding="utf-8").lower()


def in_container(marks: Sequence[Path] = CONTAINER_MARKS) -> bool:
    """Whether docker, podman or apptainer runs this process."""
    return any(mark.exists() for mark in marks) or "APPTAINER_CONTAINER" in os.environ


def shared_memory_bytes() -> int | None:
    """The size of /dev/shm; null where there is none."""
    folder = Path("/dev/shm")
    return psutil.disk_usage(str(folder)).total if folder.is_dir() else None


def family(pid: int) -> list[int]:
    """A process and everything that it started, by id; nothing if it is gone or can't be seen."""
    try:
        root = psutil.Process(pid)
        return [root.pid, *(child.pid for child in root.children(recursive=True))]
    except psutil.Error:
        return []


def group_members(group: int) -> list[int]:
    """The ids of a process group's processes, without those that are dead and not yet collected."""
    return [pid for pid in psutil.pids() if _group_of(pid) == group and _is_running(pid)]


def without_private_paths(value: Any) -> Any:
    """JSON data with the store, the checkout and the home folder replaced by short names.

    ``<store>``, ``.`` and ``~`` stand for them in every text, so that a record
    tells nothing about who made it.
    """
    if isinstance(value, str):
        return _short(value)
    if isinstance(value, dict):
        return {key: without_private_paths(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_private_paths(item) for item in value]
    return value


def _short(text: str) -> str:
    folders = {"<store>": store(), ".": repository(), "~": Path.home()}
    for name, folder in folders.items():
        for spelling in {str(folder), str(folder.resolve())} - {"/"}:
            text = text.replace(spelling, name)
    return text


def _system() -> str | None:
    name = _value_of("PRETTY_NAME", Path("/etc/os-release"), "=")
    return name.strip('"') if name else None


def _value_of(key: str, file: Path, separator: str) -> str | None:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    pairs = (line.partition(separator) for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == key), None)


def _cpu_quota(root: Path = CGROUP) -> float | None:
    """Cores' worth of time that the cgroup (version 2, else 1) allows; null where it sets no limit."""
    try:
        if (root / "cpu.max").is_file():
            quota, period = (root / "cpu.max").read_text().split()
        else:
            quota, period = (
                (root / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
    except OSError:
        return None
    return None if quota.strip() in ("max", "-1") else int(quota) / int(period)


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
