"""The engines' own benchmark tools: the workload that they are given and the figures read back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reproquant.engines.base import Engine, Plan
from reproquant.engines.llama_cpp import LlamaServer
from reproquant.engines.native import samples_of_llama_bench, speeds_of_vllm_bench
from reproquant.engines.vllm import LATENCY
from reproquant.errors import ToolError
from test_engines_plans import llama, subject, value, vllm

__all__ = ["llama"]


@pytest.fixture
def run_tools(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Tools that answer at once: 100 and 102 tok/s, or 0.5 s for one token and 1.77 s for all."""
    commands: list[tuple[str, ...]] = []

    def answer(engine: Engine, command: tuple[str, ...], plan: Plan, log: Path, work_s: float) -> None:
        commands.append(command)
        with log.open("a") as file:
            file.write("$ a command\nwarning: {not json}\n" + json.dumps({"samples_ts": [100, 102]}) + "\n")
        if command[1].endswith("in_vllm/latency.py"):
            for length, latency in zip(command[2].split(","), (0.5, 1.77), strict=True):
                Path(command[3], f"{length}.json").write_text(json.dumps({"latencies": [latency, latency]}))

    monkeypatch.setattr(Engine, "_run_tool", answer)
    return commands


def test_llama_bench_decodes_behind_a_context_of_the_prompts_length(
    llama: LlamaServer, run_tools: list[tuple[str, ...]], tmp_path: Path
) -> None:
    chosen = subject("llama_cpp", arguments=("-fa", "on"))
    found = llama.native(llama.plan(chosen), chosen, tmp_path / "log")
    prefill, decode = run_tools
    assert (value(prefill, "-p"), value(prefill, "-n")) == ("512", "0") and "-d" not in prefill
    assert (value(decode, "-p"), value(decode, "-n"), value(decode, "-d")) == ("0", "127", "512")
    assert value(decode, "-t") == "6" and value(decode, "-fa") == "on"
    assert found.decode_tok_per_s == (100, 102) and found.commands == (prefill, decode)


def test_llama_bench_is_not_told_how_much_the_server_says(
    llama: LlamaServer, run_tools: list[tuple[str, ...]], tmp_path: Path
) -> None:
    chosen = subject("llama_cpp", arguments=("-lv", "4", "-fa", "on"))
    plan = llama.plan(chosen)
    llama.native(plan, chosen, tmp_path / "log")
    assert value(plan.command, "-lv") == "4" and value(plan.command, "-fa") == "on"
    assert all("-lv" not in command and value(command, "-fa") == "on" for command in run_tools)


def test_an_argument_that_llama_bench_lacks_is_refused(llama: LlamaServer, tmp_path: Path) -> None:
    chosen = subject("llama_cpp", arguments=("--no-mmap",))
    with pytest.raises(ToolError, match="--no-mmap"):
        llama.native(llama.plan(chosen), chosen, tmp_path / "log")


def test_llama_bench_is_not_told_how_the_server_samples(
    llama: LlamaServer, run_tools: list[tuple[str, ...]], tmp_path: Path
) -> None:
    chosen = subject("llama_cpp", arguments=("--backend-sampling", "-fa", "on", "-bs"))
    plan = llama.plan(chosen)
    llama.native(plan, chosen, tmp_path / "log")
    assert "--backend-sampling" in plan.command and "-bs" in plan.command
    for command in run_tools:
        assert value(command, "-fa") == "on" and not {"--backend-sampling", "-bs"} & set(command)


def test_vllms_tool_gets_the_servers_engine_arguments_and_the_decode_is_what_more_tokens_took(
    run_tools: list[tuple[str, ...]], tmp_path: Path
) -> None:
    engine = vllm(tmp_path)
    chosen = subject("vllm", arguments=("--seed", "1"))
    found = engine.native(engine.plan(chosen), chosen, tmp_path / "log")
    (command,) = run_tools
    assert command[2] == "1,128"
    assert value(command, "--input-len") == "512" and value(command, "--batch-size") == "1"
    assert (
        command[-3:] == ("--enforce-eager", "--seed", "1") and "--enable-per-request-metrics" not in command
    )
    assert found.prefill_tok_per_s == pytest.approx((1024, 1024))
    assert found.decode_tok_per_s == pytest.approx((100, 100))


def test_output_without_figures_is_told(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("error: no memory\n")
    with pytest.raises(ToolError, match="no figures"):
        samples_of_llama_bench(tmp_path / "log", 0)
    with pytest.raises(ToolError, match="no figures"):
        speeds_of_vllm_bench(tmp_path / "1.json", tmp_path / "128.json", 512, 128)


def test_the_tool_runs_once_for_each_length_and_gets_the_engine_that_the_first_has_started(
    tmp_path: Path,
) -> None:
    """A stand-in for vLLM whose command line starts an engine and notes what it was asked."""
    cli = tmp_path / "vllm/entrypoints/cli"
    cli.mkdir(parents=True)
    (tmp_path / "vllm/__init__.py").write_text(
        "class LLM:\n    started = 0\n    def __init__(self):\n        type(self).started += 1\n"
        "    @classmethod\n    def from_engine_args(cls):\n        return cls()\n"
    )
    (cli / "main.py").write_text(
        "import sys, vllm\nfrom vllm import LLM\n"
        "if __name__ == '__main__':\n"
        "    engine = LLM.from_engine_args() if sys.argv[-3] == '1' else LLM()\n"
        "    print(*sys.argv[1:], engine.started)\n"
    )
    words = [sys.executable, LATENCY, "1,128", "OUT", "--model", "M"]
    done = subprocess.run(
        words, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "bench latency --model M --output-len 1 --output-json OUT/1.json 1",
        "bench latency --model M --output-len 128 --output-json OUT/128.json 1",
    ], done.stderr


@pytest.mark.parametrize("samples", ["null", "[null]", "[]", "[0, 0]", "7"])
def test_samples_that_are_no_speeds_are_told(samples: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f'{{"samples_ts": {samples}}}\n')
    with pytest.raises(ToolError, match="no figures"):
        samples_of_llama_bench(tmp_path / "log", 0)


@pytest.mark.parametrize(
    "data", ["[]", "7", '{"latencies": []}', '{"latencies": [null]}', '{"latencies": [0]}']
)
def test_latencies_that_are_none_are_told(data: str, tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(data)
    (tmp_path / "128.json").write_text('{"latencies": [1.0]}')
    with pytest.raises(ToolError, match="no figures"):
        speeds_of_vllm_bench(tmp_path / "1.json", tmp_path / "128.json", 512, 128)
