"""The fault suite: what each misbehaviour of a server makes of a measurement, figures included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mock_engine import WIDE, MockEngine, benchmark, subject, write_prompt
from mock_server import BEHAVIOURS, OTHERS
from reproquant.bench import session
from reproquant.bench.measurement import Measurement
from reproquant.bench.protocol import measure
from reproquant.engines.base import Endpoint, Plan
from reproquant.machine import host

TTFT_MS, ITL_MS = 10.0, 6.0


@dataclass(frozen=True)
class Fault:
    """A status, words of one of its reasons, and how the run or the limits differ from the usual ones."""

    status: str
    reason: str = ""
    limits: dict[str, float] | None = None
    changes: dict[str, Any] | None = None
    gpus: int = 0


STEADY_ONLY = {"decode_spread_percent": 30.0, "output_spread_percent": 20.0}
FOUR_ROUNDS = {"rounds": 4, "rounds_if_unsteady": 4}
FAULTS = {
    "steady": Fault("ok"),
    "within": Fault("ok"),
    "chunked": Fault("ok"),
    "withheld": Fault("ok"),
    "torn": Fault("ok"),
    "empty": Fault("ok"),
    "cold": Fault("ok", limits={"warmup_percent": 60.0}, changes={"warmup_at_most": 12}),
    "blind": Fault("flagged", "nothing confirms the client's"),
    "silent": Fault("flagged", "took from a cache"),
    "late": Fault("flagged", "taken from the server's clock", limits={"ttft_over_prefill_ms": 5.0}),
    "jittery": Fault("unstable", "differs by", limits=STEADY_ONLY, gpus=1),
    "stalling": Fault("flagged", "differs by", limits=STEADY_ONLY),
    "drifting": Fault(
        "unstable", "fell from round to round", limits={"drift_percent": 10.0}, changes={"rounds": 4}, gpus=1
    ),
    "short": Fault("rejected", "32 prompt and 7 output tokens instead of 32 and 8"),
    "clamped": Fault("rejected", "32 prompt and 4 output tokens instead of 32 and 8"),
    "surplus": Fault("rejected", "33 prompt and 8 output tokens instead of 32 and 8"),
    "cached": Fault("rejected", "took 16 prompt tokens from a cache"),
    "counter": Fault("rejected", "counter of cache hits grew by 80"),
    "short-at-first": Fault("rejected", "Warm-up request 0 of round 1 at concurrency 1 had 32 prompt and 7"),
    "cached-at-first": Fault("rejected", "Warm-up request 0 of round 1 at concurrency 1 took 16 prompt"),
    "short-once": Fault(
        "rejected", "Request 0 of round 3 at concurrency 1 had 32 prompt and 7", changes=FOUR_ROUNDS
    ),
    "cached-once": Fault(
        "rejected", "Request 0 of round 3 at concurrency 1 took 16 prompt", changes=FOUR_ROUNDS
    ),
    "untold-once": Fault("flagged", "how many prompt tokens it took", changes=FOUR_ROUNDS),
    "preempting": Fault("rejected", "put requests off: it counted 1."),
    "boasting": Fault("rejected", "by the server's clock"),
    "early": Fault("rejected", "before the server says that it was there"),
    "miscounting": Fault("rejected", "adds up to 16 output tokens and the server counted 32"),
    "lump": Fault("failed", "decoding could not be timed"),
    "breaks": Fault("failed", "the mock broke"),
    "cut": Fault("failed", "ended without [DONE]"),
    "uncounted": Fault("failed", "sent no usage"),
    "refused": Fault("failed", "HTTP 400"),
    "hangs": Fault("failed", "no end within 1 s", changes={"request_timeout_s": 1}),
    "dies": Fault("failed", "died while it was measured", changes=FOUR_ROUNDS),
}
RIGHT_DECODE = ("steady", "within", "chunked", "withheld", "torn", "empty", "cold", "late", "silent")


@pytest.fixture(scope="module")
def prompt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompt(tmp_path_factory.mktemp("faults"))


@pytest.fixture(autouse=True)
def a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "DEATH_S", 0.3)
    monkeypatch.setattr(host, "busy_share", lambda: 0.0)


class Standing(MockEngine):
    """An engine whose server stays up from one measurement to the next."""

    endpoint: Endpoint | None = None

    def launch(self, plan: Plan, log: Path) -> Endpoint:
        self.endpoint = self.endpoint or super().launch(plan, log)
        return self.endpoint

    def stop(self) -> None:
        """Not yet; ``end`` does it."""

    def end(self) -> None:
        super().stop()


@pytest.fixture(scope="module")
def standing() -> Iterator[Standing]:
    engine = Standing(times_ms=(TTFT_MS, ITL_MS))
    yield engine
    engine.end()


def uncounted() -> MockEngine:
    return MockEngine(times_ms=(TTFT_MS, ITL_MS), counts=False)


def run(name: str, prompt: Path, engine: MockEngine) -> Measurement:
    fault = FAULTS[name]
    changes = {"concurrencies": (1,), **(fault.changes or {})}
    limits = WIDE.model_copy(update=fault.limits or {})
    log = prompt.with_name(f"{name}.log")
    return measure(engine, subject(name, gpus=fault.gpus), benchmark(prompt, limits=limits, **changes), log)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_gives_the_documented_status_and_reason(name: str, prompt: Path, standing: Standing) -> None:
    alone = {"dies": MockEngine(), "silent": uncounted(), "untold-once": uncounted()}
    result = run(name, prompt, alone.get(name, standing))
    fault = FAULTS[name]
    assert result.status == fault.status, result.reasons
    assert any(fault.reason in text for text in result.reasons) or not fault.reason, result.reasons
    if name in RIGHT_DECODE:
        level = result.levels[0]
        assert 0.2 < level.decode_tok_per_s.median / (1000 / ITL_MS) < 1.5
        assert level.ttft_ms.median > TTFT_MS - 1
    if name == "late":
        assert level.prefill_from == "server"
        assert level.prefill_tok_per_s.median > 3 * 32_000 / level.ttft_ms.median
    if name == "cold":
        assert len(result.warmup) >= 5


def test_every_behaviour_of_the_mock_server_is_in_the_suite() -> None:
    assert set(FAULTS) == set(BEHAVIOURS) | set(OTHERS)
