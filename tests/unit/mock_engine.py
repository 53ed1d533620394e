"""An engine that serves with tests/mock_server.py; the subject's name picks its behaviour."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from reproquant.engines.base import PORT, Dialect, Engine, Plan
from reproquant.study import Benchmark, Subject

PROGRAM = Path(__file__).parents[1] / "mock_server.py"
TTFT_MS, ITL_MS = 60.0, 6.0


class MockEngine(Engine):
    name = "vllm"
    foreign_prefix = "MOCK_"
    dialect = Dialect("prompt", "add_special_tokens", cache_counters=("mock:hits_total",))

    def __init__(self, *arguments: str, start_timeout_s: float = 30, counts_hits: bool = True) -> None:
        super().__init__(start_timeout_s)
        self._arguments = arguments
        if not counts_hits:
            self.dialect = Dialect("prompt", "add_special_tokens")  # type: ignore[misc]

    @property
    def artifact_bytes(self) -> int:
        return 1

    def describe(self) -> dict[str, Any]:
        return {"name": "mock"}

    def plan(self, subject: Subject) -> Plan:
        timing = ("--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS))
        command = (sys.executable, str(PROGRAM), "--port", PORT, *timing, *self._arguments)
        return Plan(command, {"MOCK_PLANNED": "1"}, ("there is none",))


def subject(behaviour: str, **changes: Any) -> Subject:
    """A CPU subject that the mock server serves with this behaviour."""
    return Subject(name=behaviour, engine="vllm", artifact="checkpoint", **changes)


def benchmark(prompt: Path, **changes: Any) -> Benchmark:
    """A workload that takes a second: 32 tokens in, 8 out, concurrency 1 and 2, two rounds."""
    settings = {
        "prompt": str(prompt),
        "prompt_tokens": 32,
        "output_tokens": 8,
        "concurrencies": (1, 2),
        "warmup_requests": 2,
        "rounds": 2,
        "seed": 7,
        "request_timeout_s": 10,
        "start_timeout_s": 30,
        "baseline": "steady",
    }
    return Benchmark(**{**settings, **changes})
