"""An engine that serves with tests/mock_server.py; the subject's name picks its behaviour."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from reproquant.engines.base import PORT, Dialect, Engine, Plan
from reproquant.study import Benchmark, Limits, Subject

PROGRAM = Path(__file__).parents[1] / "mock_server.py"
TTFT_MS, ITL_MS = 60.0, 6.0
COUNTERS = {
    "cached_tokens": ("mock:hits_total",),
    "output_tokens": ("mock:tokens_total",),
    "preemptions": ("mock:preemptions_total",),
}
SUMS = {"prefill_s": ("mock:prefill_seconds_sum",), "decode_s": ("mock:decode_seconds_sum",)}
WIDE = Limits(
    warmup_percent=1000,
    decode_spread_percent=1000,
    prefill_spread_percent=1000,
    output_spread_percent=1000,
    drift_percent=1000,
    start_skew_ms=1000,
    decode_server_percent=50,
    decode_server_flag_percent=50,
    ttft_over_prefill_ms=1000,
    busy_percent=1000,
    clock_percent=1000,
)


class MockEngine(Engine):
    name = "vllm"
    foreign_prefix = "MOCK_"
    dialect = Dialect("prompt", "add_special_tokens", counters=COUNTERS)

    def __init__(
        self,
        *arguments: str,
        start_timeout_s: float = 30,
        counts: bool = True,
        times_ms: tuple[float, float] = (TTFT_MS, ITL_MS),
    ) -> None:
        super().__init__(start_timeout_s)
        self._arguments = arguments
        self._times_ms = times_ms
        if not counts:
            self.dialect = Dialect("prompt", "add_special_tokens")  # type: ignore[misc]

    @property
    def artifact_bytes(self) -> int:
        return 1

    def describe(self) -> dict[str, Any]:
        return {"name": "mock"}

    def plan(self, subject: Subject) -> Plan:
        ttft_ms, itl_ms = self._times_ms
        timing = ("--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms))
        command = (sys.executable, str(PROGRAM), "--port", PORT, *timing, *self._arguments)
        return Plan(command, {"MOCK_PLANNED": "1"}, ("there is none",))


def subject(behaviour: str, **changes: Any) -> Subject:
    """A CPU subject that the mock server serves with this behaviour."""
    return Subject(name=behaviour, engine="vllm", artifact="checkpoint", **changes)


def benchmark(prompt: Path, **changes: Any) -> Benchmark:
    """A workload that takes a second: 32 tokens in, 8 out, concurrency 1 and 2, two rounds.

    Its limits are so wide that a busy machine's jitter over 50 ms is within them.
    """
    settings = {
        "prompt": str(prompt),
        "prompt_tokens": 32,
        "output_tokens": 8,
        "concurrencies": (1, 2),
        "launches": 1,
        "warmup_requests": 3,
        "warmup_at_most": 3,
        "rounds": 2,
        "rounds_if_unsteady": 2,
        "seed": 7,
        "request_timeout_s": 10,
        "start_timeout_s": 30,
        "baseline": "steady",
        "limits": WIDE,
    }
    return Benchmark(**{**settings, **changes})


def write_prompt(folder: Path) -> Path:
    """A file with a text of 80 different characters, which the mock server makes 80 ids of."""
    path = folder / "prompt.txt"
    path.write_text("".join(chr(0x4E00 + number) for number in range(80)), encoding="utf-8")
    return path
