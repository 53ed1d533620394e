"""The sampler against a replayed driver: one card, two, many; busy, shared, hot, or broken ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from nvml_replay import play
from reproquant.bench import telemetry
from reproquant.bench.telemetry import Recorder, Span, Telemetry
from reproquant.machine.host import group_members

INTERVAL_S = 0.005
EVERYWHERE = frozenset(os.sched_getaffinity(0))
STRANGER = 4_000_000


def recorder(visible: str, group: Callable[[], int | None] = lambda: None) -> Recorder:
    def members() -> list[int]:
        serving = group()
        return [] if serving is None else group_members(serving)

    return Recorder("subject", group, members, visible, EVERYWHERE, EVERYWHERE, INTERVAL_S)


def watch(visible: str, for_s: float = 0.06, **changes: Any) -> Span:
    """One span with one window over most of it."""
    one = recorder(visible, **changes)
    with one.span("server", 0):
        one.settled()
        start = time.monotonic_ns()
        time.sleep(for_s)
        one.mark("round", 3, 4, (start, time.monotonic_ns()), 4, 512)
    (span,) = one.telemetry.spans
    assert Telemetry.model_validate_json(one.telemetry.model_dump_json()) == one.telemetry
    return span


def many(count: int) -> Callable[[dict[str, Any]], None]:
    """An edit that gives the host ``count`` cards."""

    def edit(data: dict[str, Any]) -> None:
        data["devices"] = [
            {**data["devices"][0], "nvmlDeviceGetUUID": f"GPU-{index:04}"} for index in range(count)
        ]

    return edit


@pytest.mark.parametrize(
    ("count", "visible", "used"),
    [(1, "0", [0]), (2, "0,1", [0, 1]), (2, "1", [1]), (8, "GPU-0005,GPU-0002", [2, 5]), (2, "", [])],
)
def test_every_card_of_the_host_is_recorded_and_those_of_the_subject_are_marked(
    count: int, visible: str, used: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, many(count))
    span = watch(visible)
    assert [card.index for card in span.cards if card.used] == used
    assert [card.index for card in span.cards] == list(range(count))
    assert len(span.time_s) > 2 and span.time_s == sorted(span.time_s)
    for card in span.cards:
        assert all(len(column) == len(span.time_s) for column in card.columns.values())
        assert set(card.columns["sm_mhz"]) == {1530}
        assert set(card.columns["energy_j"]) == {0}


def test_a_window_lies_within_the_samples_on_the_same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch)
    span = watch("0")
    (window,) = span.windows
    assert (window.kind, window.round, window.concurrency) == ("round", 3, 4)
    assert 0.05 < window.end_s - window.start_s < 1
    assert span.time_s[0] <= window.start_s and window.end_s <= span.time_s[-1]


def test_without_a_driver_there_are_no_cards_and_the_host_is_still_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play(monkeypatch, lambda data: data.pop("devices"))
    span = watch("", group=os.getpgrp)
    assert span.cards == [] and max(filter(None, span.host["rss_bytes"])) > 1e7
    assert "host.package_j" in span.not_measured or "package_j" in span.host


def test_a_sensor_without_any_value_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, lambda data: data["devices"][1].pop("nvmlDeviceGetTotalEnergyConsumption"))
    span = watch("0,1")
    assert "energy_j" in span.cards[0].columns and "energy_j" not in span.cards[1].columns
    assert span.not_measured["cards.1.energy_j"] == "Not Supported"


def test_a_card_that_is_lost_half_way_leaves_what_was_sampled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(1000))

    def temperature() -> int:
        if next(moments) > 2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return 40

    play(monkeypatch, lambda data: data["devices"][0].update(nvmlDeviceGetTemperature=temperature))
    column = watch("0").cards[0].columns["temperature_c"]
    assert column[:3] == [40, 40, 40] and set(column[3:]) == {None}


def test_a_sampler_that_breaks_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, lambda data: data["devices"][0].update(nvmlDeviceGetUUID=lambda: 1 / 0))
    span = watch("0")
    assert "ZeroDivisionError" in span.not_measured["sampler"]
    assert span.time_s == [] and len(span.windows) == 1


def test_a_driver_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "FIRST_S", 0.05)
    monkeypatch.setattr(telemetry, "END_S", 0.05)
    slow = lambda: time.sleep(3)  # noqa: E731
    play(monkeypatch, lambda data: data["devices"][0].update(nvmlDeviceGetTemperature=slow))
    begun = time.monotonic()
    span = watch("0", for_s=0.01)
    assert time.monotonic() - begun < 2
    assert "didn't answer" in span.not_measured["sampler"]


def on_card(*ids: int) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["devices"][0].update(nvmlDeviceGetComputeRunningProcesses=list(ids))


def strangers(span: Span) -> float:
    return max(value for value in span.cards[0].columns["foreign_processes"] if value is not None)


def test_the_servers_own_processes_are_no_strangers_and_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, on_card(os.getpid()))
    assert strangers(watch("0", group=os.getpgrp)) == 0
    play(monkeypatch, on_card(os.getpid(), STRANGER))
    assert strangers(watch("0", group=os.getpgrp)) == 1


def test_where_the_driver_numbers_processes_otherwise_who_was_there_before_is_a_stranger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play(monkeypatch, on_card(STRANGER))
    assert strangers(watch("0")) == 1


def test_where_the_driver_numbers_processes_otherwise_the_server_itself_is_no_stranger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server's number is unknown here; it comes to the card before it is healthy."""
    here: list[int] = []
    play(
        monkeypatch, lambda data: data["devices"][0].update(nvmlDeviceGetComputeRunningProcesses=lambda: here)
    )
    one = recorder("0")
    with one.span("server", 0):
        here.append(STRANGER)
        one.settled()
        time.sleep(0.15)
    assert strangers(one.telemetry.spans[0]) == 0
    with one.span("server", 1):
        one.settled()
        time.sleep(0.15)
        here.append(STRANGER + 1)
        time.sleep(0.15)
    assert strangers(one.telemetry.spans[1]) == 2


def test_energy_is_told_only_if_every_card_of_the_subject_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def mute(data: dict[str, Any]) -> None:
        for question in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"):
            data["devices"][1].pop(question)

    play(monkeypatch, mute)
    for visible, told in (("0", True), ("1", False), ("0,1", False)):
        one = recorder(visible)
        with one.span("server", 0):
            assert one.tells_energy() is told
        assert not one.tells_energy()


def test_what_the_sampler_takes_of_a_core_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch)
    assert 0 < watch("0,1").sampler_cpu_percent < 100


@pytest.mark.parametrize("visible", ["MIG-1234", "7"])
def test_a_gpu_that_the_driver_does_not_name_tells_no_energy_whatever_the_cpu_tells(
    visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch)
    monkeypatch.setattr(telemetry.HostSensors, "read", lambda self, members: {"package_j": 1.0})
    one = recorder(visible)
    with one.span("server", 0):
        assert not one.tells_energy()
    one = recorder("")
    with one.span("server", 0):
        assert one.tells_energy()
