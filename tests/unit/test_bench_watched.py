"""A whole measurement on replayed cards: what the sampler saw decides its status, and energy is counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from mock_engine import MockEngine, benchmark, subject, write_prompt
from nvml_replay import play
from reproquant.bench.measurement import Measurement
from reproquant.bench.protocol import measure
from reproquant.bench.telemetry import Telemetry
from reproquant.engines.streamed import Streamed
from reproquant.machine import bandwidth, gpu, host
from reproquant.study import Subject

WATTS = 250


class OnCards(MockEngine):
    """A mock engine that is given cards, and reads ``weights`` bytes a token."""

    def __init__(self, weights: int = 1) -> None:
        super().__init__(times_ms=(10.0, 5.0))
        self._weights = weights

    def streamed(self, subject: Subject) -> Streamed:
        return Streamed(self._weights, 0, 0, subject.gpus)


@pytest.fixture
def prompt(tmp_path: Path) -> Path:
    return write_prompt(tmp_path)


@pytest.fixture(autouse=True)
def a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "busy_share", lambda: 0.0)
    copied = {"gb_per_s": 800.0, "array_bytes": 1 << 30, "cache_bytes": 1 << 22}
    monkeypatch.setattr(bandwidth, "of_gpus", lambda visible: [copied] * len(visible.split(",")))


def run(
    patch: pytest.MonkeyPatch,
    prompt: Path,
    *edits: Callable[[dict[str, Any]], object],
    gpus: int = 1,
    weights: int = 1,
    seconds: int = 0,
    behaviour: str = "steady",
) -> Measurement:
    """Measure the mock on replayed cards that draw ``WATTS`` each."""
    begun = time.monotonic()

    def edit(data: dict[str, Any]) -> None:
        for card in data["devices"]:
            card["nvmlDeviceGetPowerUsage"] = 1000 * WATTS
            card["nvmlDeviceGetTotalEnergyConsumption"] = lambda: 1000 * WATTS * (time.monotonic() - begun)
        for change in edits:
            change(data)

    play(patch, edit)
    wanted = benchmark(prompt, concurrencies=(1,)).model_copy(update={"energy_seconds": seconds})
    return measure(
        OnCards(weights), subject(behaviour, gpus=gpus), wanted, prompt.with_name("log"),
        prompt.with_name("telemetry.json"), 900,
    )  # fmt: skip


def test_quiet_cards_leave_a_run_ok_and_their_samples_in_a_file(
    prompt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(monkeypatch, prompt, gpus=1)
    assert result.status == "ok", result.reasons
    text = prompt.with_name("telemetry.json").read_text()
    span, tool = Telemetry.model_validate_json(text).spans
    assert (span.what, span.launch, tool.what, tool.windows) == ("server", 0, "native tool", [])
    assert [card.used for card in span.cards] == [True, False]
    assert [(window.kind, window.round) for window in span.windows] == [("round", 0), ("round", 1)]
    assert "\n" not in text.strip()
    assert result.watched and [card.power_w for card in result.watched.cards] == [WATTS, WATTS]
    assert result.watched.not_measured["energy"] == "the study's benchmark.energy_seconds is 0"


def throttled(data: dict[str, Any]) -> None:
    bit = pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    data["devices"][0]["nvmlDeviceGetCurrentClocksThrottleReasons"] = bit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (throttled, "because of heat (hardware)"),
        (lambda data: data["devices"][0].update(nvmlDeviceGetTemperature=91), "91 °C hot"),
        (
            lambda data: data["devices"][0].update(nvmlDeviceGetComputeRunningProcesses=[9]),
            "other program(s)",
        ),
    ],
)
def test_a_slowed_a_hot_and_a_shared_card_reject_the_run(
    edit: Callable[[dict[str, Any]], object], words: str, prompt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(monkeypatch, prompt, edit)
    assert result.status == "rejected" and words in result.reasons[0]
    assert len(result.requests) == 2


def test_a_driver_that_answers_nothing_while_it_is_measured_only_flags(
    prompt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mute(data: dict[str, Any]) -> None:
        for question in ("Temperature", "CurrentClocksThrottleReasons", "ComputeRunningProcesses"):
            data["devices"][0].pop(f"nvmlDeviceGet{question}")

    result = run(monkeypatch, prompt, mute)
    assert result.status == "flagged" and len(result.reasons) == 3
    assert "(Not Supported): whether it was hot is unknown" in result.reasons[0]


def test_energy_is_counted_over_requests_without_a_pause(
    prompt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(monkeypatch, prompt, gpus=2, seconds=1)
    assert result.status == "ok", result.reasons
    (energy,) = result.energy
    assert energy.seconds >= 1 and energy.source == "counter"
    assert energy.joules == pytest.approx(2 * WATTS * energy.seconds, rel=0.02)
    assert energy.tokens_per_joule == pytest.approx(energy.output_tokens / energy.joules)
    assert energy.output_tokens > 8 and energy.output_tokens % 8 == 0
    assert [check.verdict for check in result.checks if check.what == "energy"] == ["ok"]
    assert len(result.requests) == 2


def test_a_counter_that_contradicts_the_power_gives_no_energy_and_flags(
    prompt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = lambda data: data["devices"][0].update(nvmlDeviceGetPowerUsage=500 * WATTS)  # noqa: E731
    result = run(monkeypatch, prompt, half, seconds=1)
    assert (result.status, result.energy) == ("flagged", [])
    assert "beyond 10% no energy is given" in result.reasons[0]


def test_a_decode_above_the_ceiling_is_rejected_as_impossible(
    prompt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(monkeypatch, prompt, weights=10**10)
    assert result.status == "rejected" and "That is impossible" in result.reasons[0]
    assert result.ceiling and result.ceiling.decode_tok_per_s == 90 and result.ceiling.memories == 1
    assert run(monkeypatch, prompt, weights=10**9).status == "ok"


def test_a_card_that_falls_off_the_bus_while_it_is_measured_leaves_what_was_measured(
    prompt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Xid 79: every question is answered with an error, and so is the handle's."""
    lost = {"since": float("inf")}

    class Lost(OnCards):
        def stop(self) -> None:
            lost["since"] = 0
            super().stop()

    play(monkeypatch)

    def handle(index: int) -> int:
        if time.monotonic() > lost["since"]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    monkeypatch.setattr(gpu.pynvml, "nvmlDeviceGetHandleByIndex", handle, raising=False)
    for gpus in (1, 2):
        lost["since"] = float("inf")
        result = measure(
            Lost(),
            subject("steady", gpus=gpus),
            benchmark(prompt, concurrencies=(1,)),
            prompt.with_name("log"),
        )
        assert len(result.requests) == 2 and len(result.machine["gpus"]) == 2


def test_a_server_that_dies_under_the_sustained_load_has_failed_and_its_rounds_are_kept(
    prompt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its seventh request ends it: the second one after the rounds."""
    result = run(monkeypatch, prompt, seconds=1, behaviour="dies")
    assert result.status == "failed" and "died while it was measured" in result.reasons[0]
    assert len(result.requests) == 2 and len(result.levels) == 1 and result.energy == []
