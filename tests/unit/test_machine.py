"""What is told about this machine, and what is not."""

from __future__ import annotations

import json
import platform
import socket
from pathlib import Path

import pytest

import nvml_replay
from reproquant.errors import ToolError
from reproquant.files import repository
from reproquant.machine import gpu, host


def test_the_host_is_described_without_its_name_or_its_user() -> None:
    described = host.describe()
    assert described["cores_available"] >= 1 and described["memory_bytes"] > 1e8
    assert described["kernel"] == platform.release()
    texts = [str(value) for value in described.values()]
    assert socket.gethostname() not in texts and str(Path.home()) not in json.dumps(described)


def test_the_cpu_model_is_read_from_cpuinfo_and_null_where_it_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: A CPU @ 2.0 GHz\n\nmodel name\t: A CPU @ 2.0 GHz\n")
    assert host.cpu_model(file) == "A CPU @ 2.0 GHz"
    file.write_text("processor\t: 0\n")
    assert host.cpu_model(file) is None and host.cpu_model(tmp_path / "none") is None


def test_governors_are_told_once_each_and_null_where_none_is_readable(tmp_path: Path) -> None:
    assert host.governors(tmp_path) is None
    for core, name in enumerate(("powersave", "powersave", "performance")):
        folder = tmp_path / f"cpu{core}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{name}\n")
    assert host.governors(tmp_path) == ["performance", "powersave"]


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_containers_cpu_quota_is_read_in_both_versions_of_cgroups(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert host._cpu_quota(tmp_path) == quota


def test_store_checkout_and_home_are_replaced_in_nested_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("REPROQUANT_STORE", raising=False)
    data = {
        "a": ["/home/someone/.cache/reproquant/x", f"{repository()}/results"],
        "b": ("/home/someone/y", 3),
    }
    assert host.without_private_paths(data) == {"a": ["<store>/x", "./results"], "b": ["~/y", 3]}


def test_a_machine_without_an_nvidia_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise gpu.pynvml.NVMLError(gpu.pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(gpu.pynvml, "nvmlInit", no_driver)
    assert gpu.gpus() == []


def test_persistence_mode_is_told_and_null_where_the_driver_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def edit(data: dict) -> None:
        data["devices"][0]["nvmlDeviceGetPersistenceMode"] = 1
        data["devices"][1].pop("nvmlDeviceGetPersistenceMode", None)

    nvml_replay.play(monkeypatch, edit)
    assert [item.describe()["persistence"] for item in gpu.gpus()] == [True, None]


def test_visible_devices_are_taken_from_those_that_a_scheduler_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert (gpu.visible_devices(1), gpu.visible_devices(0)) == ("3", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu.visible_devices(2) == "0,1"


@pytest.mark.parametrize("given", ["3", ""])
def test_fewer_devices_than_a_subject_has_are_refused_and_not_measured_as_all(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A split by layers would run on what there is."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    with pytest.raises(ToolError, match=f"'{given}' shows"):
        gpu.visible_devices(2)
    assert gpu.visible_devices(0) == ""
