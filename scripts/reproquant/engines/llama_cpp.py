"""llama.cpp's llama-server as an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproquant.engines.base import LOOPBACK, PORT, Dialect, Engine, Plan
from reproquant.engines.between_cards import handed_on
from reproquant.engines.native import NativeRun, samples_of_llama_bench, shared_by_llama_cpp
from reproquant.engines.streamed import Streamed, of_gguf, option
from reproquant.machine.gpu import shown
from reproquant.study import Benchmark, Subject
from reproquant.toolchain.llama_cpp import Build

CONTEXT_STEP = 256
CACHE_OFF = ("--no-cache-prompt", "--cache-ram", "0")


class LlamaServer(Engine):
    """llama-server on one GGUF, with one slot for each request of the largest concurrency."""

    name = "llama_cpp"
    foreign_prefix = "LLAMA_ARG_"
    dialect = Dialect(
        text_key="content",
        special_key="add_special",
        completion={
            "cache_prompt": False,
            "top_k": 1,
            "repeat_penalty": 1.0,
            "timings_per_token": True,
        },
        counters={"output_tokens": ("llamacpp:tokens_predicted_total",)},
    )

    def __init__(self, build: Build, gguf: Path, benchmark: Benchmark, threads: int) -> None:
        super().__init__(benchmark.start_timeout_s)
        self._build = build
        self._gguf = gguf
        self._benchmark = benchmark
        self._threads = threads

    @property
    def artifact_bytes(self) -> int:
        return self._gguf.stat().st_size

    def describe(self) -> dict[str, Any]:
        return {"name": "llama.cpp", **self._build.facts}

    def plan(self, subject: Subject) -> Plan:
        """llama-server's command line; with no GPUs, they are hidden from it.

        ``-c`` is divided among the ``-np`` slots; each gets room for its
        prompt and output, rounded up to the server's step of 256.
        """
        slots = max(self._benchmark.concurrencies)
        needed = self._benchmark.prompt_tokens + self._benchmark.output_tokens + 1
        context = slots * CONTEXT_STEP * -(-needed // CONTEXT_STEP)
        command = (
            *(str(self._build.binary("llama-server")), "-m", str(self._gguf), "--alias", subject.name),
            *("--host", LOOPBACK, "--port", PORT),
            *("-np", str(slots), "-c", str(context), "-t", str(self._threads)),
            *_placement(subject),
            *CACHE_OFF,
            *("--metrics", "--offline", "--no-ui"),
            *subject.arguments,
        )
        variables = {**handed_on(), **shown(subject.gpus)}
        return Plan(command, variables, (" ".join(CACHE_OFF), "cache_prompt false in every request"))

    def native(self, plan: Plan, subject: Subject, log: Path) -> NativeRun:
        """llama-bench for the prefill, and for the decode steps behind a context of the prompt's length.

        Its usual ``tg`` starts from an empty context. n output tokens are n - 1 steps.
        """
        prompt, steps = self._benchmark.prompt_tokens, self._benchmark.output_tokens - 1
        common = (
            *(str(self._build.binary("llama-bench")), "-m", str(self._gguf), "-t", str(self._threads)),
            *("-r", str(self._benchmark.native_repetitions), "-o", "jsonl"),
            *_placement(subject),
            *shared_by_llama_cpp(subject.arguments),
        )
        prefill = (*common, "-p", str(prompt), "-n", "0")
        decode = (*common, "-p", "0", "-n", str(steps), "-d", str(prompt))
        speeds = [self._bench(command, plan, log) for command in (prefill, decode)]
        return NativeRun("llama-bench", (prefill, decode), *speeds)

    def streamed(self, subject: Subject) -> Streamed:
        """The GGUF and its cache; cards read at the same time only where the tensors are split."""
        keys, values = (
            option(subject.arguments, names, "f16")
            for names in (("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v"))
        )
        memories = subject.gpus if subject.split_mode == "tensor" else 1
        return of_gguf(self._gguf, (keys, values), memories)

    def _bench(self, command: tuple[str, ...], plan: Plan, log: Path) -> tuple[float, ...]:
        start = log.stat().st_size if log.exists() else 0
        self._run_tool(command, plan, log, self._benchmark.native_seconds)
        return samples_of_llama_bench(log, start)


def _placement(subject: Subject) -> tuple[str, ...]:
    return ("-ngl", "99", "-sm", subject.split_mode) if subject.gpus else ()
