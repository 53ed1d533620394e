"""vLLM's OpenAI-compatible server as an engine."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from reproquant.engines.base import LOOPBACK, PORT, Dialect, Engine, Plan
from reproquant.engines.native import NativeRun, speeds_of_vllm_bench
from reproquant.errors import StudyError
from reproquant.files import repository
from reproquant.machine.gpu import visible_devices
from reproquant.study import Benchmark, Subject, Vllm
from reproquant.toolchain.python_env import PythonEnv

CACHE_OFF = "--no-enable-prefix-caching"
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
    """``vllm serve`` on one checkpoint folder, run with a locked environment's Python."""

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
        },
    )

    def __init__(
        self, environment: PythonEnv, checkpoint: Path, settings: Vllm, benchmark: Benchmark
    ) -> None:
        super().__init__(benchmark.start_timeout_s)
        self._environment = environment
        self._checkpoint = checkpoint
        self._settings = settings
        self._benchmark = benchmark

    @property
    def artifact_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._checkpoint.glob("*.safetensors"))

    def describe(self) -> dict[str, Any]:
        return {
            "name": "vLLM",
            "version": self._settings.version,
            "environment": self._environment.describe(),
        }

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
        command = (
            *(
                str(self._environment.python),
                "-m",
                "vllm.entrypoints.cli.main",
                "serve",
                str(self._checkpoint),
            ),
            *("--served-model-name", subject.name, "--host", LOOPBACK, "--port", PORT),
            *("--generation-config", "vllm", "--enable-prompt-tokens-details"),
            *(("--enable-per-request-metrics",) if self._tells_times() else ()),
            *self._engine_arguments(subject),
        )
        variables = {
            "CUDA_VISIBLE_DEVICES": visible_devices(subject.gpus),
            **QUIET,
            **(_emulation() if subject.emulated else {}),
            **dict(text.split("=", 1) for text in self._settings.environment_variables),
        }
        return Plan(command, variables, (CACHE_OFF,))

    def native(self, plan: Plan, subject: Subject, log: Path) -> NativeRun:
        """``vllm bench latency`` for one output token and for all, with the server's engine arguments.

        Its prompts are random ids, and it serves one request at a time.
        """
        benchmark = self._benchmark
        with tempfile.TemporaryDirectory() as folder:
            results = [Path(folder) / f"{count}.json" for count in (1, benchmark.output_tokens)]
            commands = [
                (
                    *(str(self._environment.python), "-m", "vllm.entrypoints.cli.main", "bench", "latency"),
                    *("--model", str(self._checkpoint), "--batch-size", "1"),
                    *("--input-len", str(benchmark.prompt_tokens), "--output-len", result.stem),
                    *("--num-iters", str(benchmark.native_repetitions), "--num-iters-warmup", "2"),
                    *("--output-json", str(result)),
                    *self._engine_arguments(subject),
                )
                for result in results
            ]
            for command in commands:
                self._run_tool(command, plan, log, benchmark.native_seconds)
            speeds = speeds_of_vllm_bench(
                results[0], results[1], benchmark.prompt_tokens, benchmark.output_tokens
            )
        return NativeRun("vllm bench latency", tuple(commands), *speeds)

    def _engine_arguments(self, subject: Subject) -> tuple[str, ...]:
        """What decides how fast the engine is, alike for its server and its own tool."""
        return (
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


def _emulation() -> dict[str, str]:
    """Variables with which vLLM finds and loads the plugin, and no other."""
    return {"PYTHONPATH": str(repository() / PLUGIN_FOLDER), "VLLM_PLUGINS": PLUGIN}
