"""vLLM's OpenAI-compatible server as an engine."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproquant.engines.base import LOOPBACK, PORT, Dialect, Engine, Plan
from reproquant.engines.between_cards import handed_on
from reproquant.engines.native import NativeRun, speeds_of_vllm_bench
from reproquant.engines.runtime import Invocation, Runtime, Shared
from reproquant.engines.streamed import Streamed, of_checkpoint, option
from reproquant.errors import StudyError
from reproquant.files import repository
from reproquant.study import Benchmark, Subject, Vllm

CACHE_OFF = "--no-enable-prefix-caching"
COMMAND = ("-m", "vllm.entrypoints.cli.main")
LATENCY = Path(__file__).parent / "in_vllm" / "latency.py"
TIMES_SINCE = (0, 27)
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONPATH": "",
}
PLUGIN = "reproquant_fp8_emulated"
PLUGIN_FOLDER = "workflow/plugins/fp8_emulated"


class VllmServer(Engine):
    """``vllm serve`` on one checkpoint folder, run with an environment's Python or in a container."""

    name = "vllm"
    foreign_prefix = "VLLM_"
    dialect = Dialect(
        text_key="prompt",
        special_key="add_special_tokens",
        completion={"repetition_penalty": 1.0, "top_p": 1.0, "return_token_ids": True},
        counters={
            "cached_tokens": (
                "vllm:prefix_cache_hits_total",
                "vllm:gpu_prefix_cache_hits_total",
                "vllm:gpu_prefix_cache_hit_rate",
            ),
            "output_tokens": ("vllm:generation_tokens_total",),
            "prefill_s": ("vllm:request_prefill_time_seconds_sum",),
            "decode_s": ("vllm:request_decode_time_seconds_sum",),
            "preemptions": ("vllm:num_preemptions_total",),
        },
    )

    def __init__(self, runtime: Runtime, checkpoint: Path, settings: Vllm, benchmark: Benchmark) -> None:
        super().__init__(benchmark.start_timeout_s)
        self._runtime = runtime
        self._checkpoint = Shared(checkpoint, "/checkpoint")
        self._settings = settings
        self._benchmark = benchmark

    @property
    def artifact_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._checkpoint.path.glob("*.safetensors"))

    def describe(self) -> dict[str, Any]:
        return {
            "name": "vLLM",
            "version": self._settings.version,
            "environment": self._runtime.describe(),
        }

    def processes(self) -> list[int]:
        group = self.process_group
        return [] if group is None else self._runtime.processes(group)

    def plan(self, subject: Subject) -> Plan:
        """``vllm serve``'s command line: what the study needs, then its arguments, then the subject's.

        Raises StudyError if a request wouldn't fit ``max_model_len``: vLLM
        would answer it with fewer tokens and no error.
        """
        needed = self._benchmark.prompt_tokens + self._benchmark.output_tokens
        if needed > self._settings.max_model_len:
            raise StudyError(
                "vllm.max_model_len",
                f"a request takes {needed} tokens, and vLLM would cut its output",
                f"give at least {needed}",
            )
        words = (
            *(*COMMAND, "serve", self._runtime.seen(self._checkpoint)),
            *("--served-model-name", subject.name, "--host", LOOPBACK, "--port", PORT),
            "--enable-prompt-tokens-details",
            *(("--enable-per-request-metrics",) if self._tells_times() else ()),
            *self._engine_arguments(subject),
        )
        invocation = self._invocation(words, subject, self._checkpoint)
        return Plan(invocation.command, invocation.environment_variables, (CACHE_OFF,), invocation.ending)

    def native(self, plan: Plan, subject: Subject, log: Path) -> NativeRun:
        """``vllm bench latency`` for one output token and for all, with the server's engine arguments.

        Its prompts are random ids, and it serves one request at a time. One engine serves both
        lengths (``in_vllm/latency.py``): its start takes up to minutes, each of them seconds.
        """
        benchmark = self._benchmark
        with tempfile.TemporaryDirectory() as folder:
            results = Shared(Path(folder), "/results", writable=True)
            command = self._bench((1, benchmark.output_tokens), results, subject)
            self._run_tool(command, plan, log, 2 * benchmark.native_seconds)
            first, whole = (results.path / f"{count}.json" for count in (1, benchmark.output_tokens))
            speeds = speeds_of_vllm_bench(first, whole, benchmark.prompt_tokens, benchmark.output_tokens)
        return NativeRun("vllm bench latency", (command,), *speeds)

    def _bench(self, lengths: Sequence[int], results: Shared, subject: Subject) -> tuple[str, ...]:
        """The tool's command line for these output lengths; for each it writes ``LENGTH.json``."""
        benchmark = self._benchmark
        program = Shared(LATENCY.parent, "/program")
        words = (
            *(f"{self._runtime.seen(program)}/{LATENCY.name}", ",".join(map(str, lengths))),
            *(self._runtime.seen(results), "--model", self._runtime.seen(self._checkpoint)),
            *("--batch-size", "1", "--input-len", str(benchmark.prompt_tokens)),
            *("--num-iters", str(benchmark.native_repetitions), "--num-iters-warmup", "2"),
            *self._engine_arguments(subject),
        )
        return self._invocation(words, subject, self._checkpoint, results, program).command

    def _invocation(self, words: Sequence[str], subject: Subject, *folders: Shared) -> Invocation:
        variables = {**handed_on(), **QUIET}
        if subject.emulated:
            plugins = Shared(repository() / PLUGIN_FOLDER, "/plugins")
            variables |= {"PYTHONPATH": self._runtime.seen(plugins), "VLLM_PLUGINS": PLUGIN}
            folders = (*folders, plugins)
        variables |= dict(text.split("=", 1) for text in self._settings.environment_variables)
        return self._runtime.invocation(words, subject.gpus, variables, folders)

    def streamed(self, subject: Subject) -> Streamed:
        """The checkpoint and its cache, read by all cards at the same time."""
        arguments = (*self._settings.arguments, *subject.arguments)
        eight_bits = option(arguments, ("--kv-cache-dtype",), "auto").startswith("fp8")
        return of_checkpoint(self._checkpoint.path, 1 if eight_bits else 2, max(1, subject.gpus))

    def _engine_arguments(self, subject: Subject) -> tuple[str, ...]:
        """What makes an engine what it is, alike for its server and its own tool.

        vLLM's cache of compiled graphs is keyed by all of it, by ``--generation-config`` too.
        """
        return (
            *("--generation-config", "vllm"),
            *("--dtype", self._settings.dtype, "--max-model-len", str(self._settings.max_model_len)),
            CACHE_OFF,
            *(("-tp", str(subject.gpus)) if subject.gpus else ()),
            *self._settings.arguments,
            *subject.arguments,
        )

    def _tells_times(self) -> bool:
        """Whether this version tells a request's times in its answer; others have sums in /metrics."""
        numbers = tuple(int(part) for part in re.findall(r"\d+", self._settings.version))
        return numbers >= TIMES_SINCE
