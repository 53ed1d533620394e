"""How exact our client, guidellm, AIPerf and `vllm bench serve` are, side by side against a known truth.

    python benchmarks/accuracy [--concurrency 1 4 16 64] [--rounds 2] [--tokens 128] [--tools reproquant ...]

All of them ask the tests' mock server, which sends token i of a completion ttft + i * itl after the request
and keeps when it really did, by the same monotonic clock. A tool's error is what it says of a request less
what the mock did with that very request, so that the mock's own lateness is nobody's error. The tools run one
after the other, in the next round the other way round. Prints the median of the absolute errors over all
requests (throughput: over all runs). Installs the tools' locked environments into the store (3 GB) first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.request
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from gguf import GGUFReader

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests"), str(ROOT / "tests/unit")]

from tools import MODEL, AIPerf, Guidellm, Load, Reproquant, Run, Tool, VllmBenchServe  # noqa: E402

from mock_engine import MockEngine, subject  # noqa: E402
from reproquant.engines.base import Endpoint  # noqa: E402
from reproquant.errors import ReproquantError, ToolError  # noqa: E402
from reproquant.model.tokenizer import Vocabulary  # noqa: E402
from reproquant.study import SdistSource  # noqa: E402
from reproquant.toolchain.llama_cpp import fetch_source  # noqa: E402

TTFT_MS, ITL_MS = 200.0, 10.0
PROMPT_TOKENS = 512
LEAST_REQUESTS, WAVES = 8, 2
FIGURES = {"TTFT, ms": 3, "ITL, ms": 4, "decode, %": 4, "throughput, %": 3}
TOOLS = {tool.name: tool for tool in (Reproquant, Guidellm, AIPerf, VllmBenchServe)}


@dataclass
class Errors:
    """Absolute errors by figure, and by how much the mock itself missed its plan."""

    of_tool: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    of_mock: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, run: Run, truth: dict[str, dict[str, Any]]) -> None:
        """Compare a run with what the mock did with each request, ``truth`` by the run's keys."""
        for seen in run.requests:
            did = truth[seen.key]
            ttft_ms = (did["first_ns"] - did["came_ns"]) / 1e6
            itl_ms = (did["last_ns"] - did["first_ns"]) / 1e6 / (did["tokens"] - 1)
            self._note("TTFT, ms", seen.ttft_ms - ttft_ms, ttft_ms - TTFT_MS)
            self._note("ITL, ms", seen.itl_ms - itl_ms, itl_ms - ITL_MS)
            self._note(
                "decode, %", 100 * (seen.decode_tok_per_s * itl_ms / 1000 - 1), 100 * (ITL_MS / itl_ms - 1)
            )
        counted = [truth[key] for key in (*run.warmup, *(seen.key for seen in run.requests))]
        took_s = (max(did["last_ns"] for did in counted) - min(did["came_ns"] for did in counted)) / 1e9
        rate = sum(did["tokens"] for did in counted) / took_s
        self.of_tool["throughput, %"].append(abs(100 * (run.output_tok_per_s / rate - 1)))

    def _note(self, figure: str, tool: float, mock: float) -> None:
        self.of_tool[figure].append(abs(tool))
        self.of_mock[figure].append(abs(mock))


def main() -> None:
    arguments = parsed()
    try:
        with TemporaryDirectory(prefix="reproquant-") as scratch:
            compare(arguments, Path(scratch))
    except ReproquantError as error:
        sys.exit(str(error))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128, help="of each completion")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    return parser.parse_args()


def compare(arguments: argparse.Namespace, scratch: Path) -> None:
    tools = prepared(arguments.tools, scratch)
    engine = MockEngine(times_ms=(TTFT_MS, ITL_MS))
    print(
        f"The mock sends {arguments.tokens} tokens, the first after {TTFT_MS:g} ms, then every {ITL_MS:g} ms."
    )
    print("Absolute errors, median over requests; * the smallest of a column.")
    try:
        endpoint = engine.launch(engine.plan(subject(MODEL)), scratch / "mock.log")
        for concurrency in arguments.concurrency:
            load = Load(
                concurrency, max(LEAST_REQUESTS, WAVES * concurrency), PROMPT_TOKENS, arguments.tokens
            )
            errors = {tool.name: Errors() for tool in tools}
            order = []
            for number in range(arguments.rounds):
                for tool in tools if number % 2 == 0 else reversed(tools):
                    order.append(tool.name)
                    one(
                        tool,
                        endpoint,
                        load,
                        scratch / f"{concurrency}-{number}-{tool.name}",
                        errors[tool.name],
                    )
            show(load, order, errors)
    finally:
        engine.stop()
    print()
    for tool in tools:
        print(f"{tool.name} {tool.version()}: {tool.definitions}.")


def prepared(names: list[str], scratch: Path) -> list[Tool]:
    """The tools, each with its environment, and a tokenizer for those that write their own prompts."""
    log, tokenizer = scratch / "log", scratch / "tokenizer"
    log.touch()
    embedded = yaml.safe_load((ROOT / "workflow/studies/embedded.yaml").read_text(encoding="utf-8"))
    source = fetch_source(SdistSource(**embedded["llama_cpp"]["sdist"]), log)
    vocabulary = source.root / "models/ggml-vocab-qwen2.gguf"
    tokenizer.mkdir()
    Vocabulary.read(GGUFReader(vocabulary), vocabulary).write(tokenizer)
    (tokenizer / "config.json").write_text('{"model_type": "qwen2"}', encoding="utf-8")
    return [Reproquant() if name == Reproquant.name else TOOLS[name](tokenizer, log) for name in names]


def one(tool: Tool, endpoint: Endpoint, load: Load, folder: Path, errors: Errors) -> None:
    """Run a tool once and add its errors; raises ToolError if a request of it is missing."""
    folder.mkdir()
    before = len(served(endpoint))
    runs = tool.run(endpoint, load, folder)
    did = {str(each[tool.key]): each for each in served(endpoint)[before:]}
    if (found := sum(len(run.requests) for run in runs)) != load.requests:
        raise ToolError(
            tool.name, f"it tells of {found} requests instead of {load.requests}", f"see {folder}"
        )
    for run in runs:
        errors.add(run, did)


def served(endpoint: Endpoint) -> list[dict[str, Any]]:
    """What the mock did with each completion so far."""
    with urllib.request.urlopen(f"{endpoint.url}/served") as answer:
        return list(json.load(answer))


def show(load: Load, order: list[str], errors: dict[str, Errors]) -> None:
    """Print the table of one concurrency."""
    busy = f"load average {os.getloadavg()[0]:.1f}"
    print(f"\n{load.concurrency} at once, {load.requests} requests a run, {busy}; {', '.join(order)}")
    print(f"{'':>18}" + "".join(f"{figure:>15}" for figure in FIGURES))
    medians = {
        name: {figure: median(found.of_tool[figure]) for figure in FIGURES} for name, found in errors.items()
    }
    for name, row in medians.items():
        cells = []
        for figure, digits in FIGURES.items():
            best = row[figure] == min(each[figure] for each in medians.values())
            cells.append(f"{row[figure]:.{digits}f}{'*' if best else ' '}")
        print(f"{name:>18}" + "".join(f"{cell:>15}" for cell in cells), flush=True)
    mock = [
        f"{median([value for found in errors.values() for value in found.of_mock[figure]]):.{digits}f} "
        for figure, digits in FIGURES.items()
        if figure != "throughput, %"
    ]
    print(f"{'(mock off its plan':>18}" + "".join(f"{cell:>15}" for cell in mock) + ")", flush=True)


if __name__ == "__main__":
    main()
