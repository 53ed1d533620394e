"""The memory's bandwidth: measured on this CPU, refused in words where there is no GPU."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from reproquant.errors import ToolError
from reproquant.machine import bandwidth, copy_on_cpu
from reproquant.machine.copy_on_gpu import Driver, Refused


def test_copies_and_reads_by_several_cores_give_a_plausible_bandwidth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copy_on_cpu, "ARRAY_BYTES", 1 << 23)
    found = copy_on_cpu.measure(sorted(os.sched_getaffinity(0))[:2], cache_bytes=0)
    assert 0.1 < float(found["gb_per_s"]) < 10_000
    assert found["array_bytes"] == 1 << 23
    assert str(found["how"]).split()[0] in ("copy", "read")


def test_a_waiting_thread_that_wakes_late_makes_no_memory_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 MiB in 40 ms are 0.42 GB/s of a copy and half of that of a read."""

    class Late(threading.Barrier):
        def wait(self, timeout: float | None = None) -> int:
            place = super().wait(timeout)
            if threading.current_thread() is threading.main_thread():
                time.sleep(0.03)
            return place

    monkeypatch.setattr(copy_on_cpu, "ARRAY_BYTES", 1 << 23)
    monkeypatch.setattr(copy_on_cpu.threading, "Barrier", Late)
    for kind in ("_copy", "_read"):
        monkeypatch.setattr(copy_on_cpu, kind, lambda source, target: time.sleep(0.04))
    found = copy_on_cpu.measure(sorted(os.sched_getaffinity(0))[:1], cache_bytes=0)
    assert found["how"] == "copy by 1 core(s)" and 0.2 < float(found["gb_per_s"]) < 0.42


def test_a_machine_without_the_drivers_library_is_told_so() -> None:
    with pytest.raises(Refused, match="there is no NVIDIA driver here"):
        Driver("libcuda-that-is-nowhere.so.1")


def test_a_copy_on_a_gpu_that_cannot_be_had_is_a_tool_error_with_its_last_words() -> None:
    try:
        Driver()
    except Refused:
        with pytest.raises(ToolError, match=r"libcuda\.so\.1 can't be loaded"):
            bandwidth.of_gpus("0")
    else:
        assert all(card["gb_per_s"] > 10 for card in bandwidth.of_gpus("0"))


def cache(root: Path, core: int, level: int, size: str, shared: str) -> None:
    folder = root / f"cpu{core}/cache/index{level}"
    folder.mkdir(parents=True)
    for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared)):
        (folder / name).write_text(f"{text}\n")


def test_the_last_level_caches_that_the_cores_share_are_added_up_once_each(tmp_path: Path) -> None:
    for core, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3")):
        cache(tmp_path, core, 2, "512K", str(core))
        cache(tmp_path, core, 3, "32768K", shared)
    assert bandwidth.last_level_cache_bytes((0, 1), tmp_path) == 32 << 20
    assert bandwidth.last_level_cache_bytes((0, 1, 2), tmp_path) == 64 << 20
    assert bandwidth.last_level_cache_bytes((7,), tmp_path) is None
