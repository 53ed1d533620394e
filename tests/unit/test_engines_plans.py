"""The command lines that the engines plan."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from mock_engine import benchmark
from reproquant.engines.llama_cpp import LlamaServer
from reproquant.engines.runtime import OnThisMachine
from reproquant.engines.vllm import VllmServer
from reproquant.errors import StudyError
from reproquant.files import sha256_file
from reproquant.study import Subject, Vllm
from reproquant.toolchain.llama_cpp import Build
from reproquant.toolchain.python_env import PythonEnv


@pytest.fixture
def llama(tmp_path: Path) -> LlamaServer:
    server = tmp_path / "bin" / "llama-server"
    server.parent.mkdir()
    server.write_bytes(b"a program")
    (bench := server.with_name("llama-bench")).write_bytes(b"another program")
    digests = {path.name: {"sha256": sha256_file(path)} for path in (server, bench)}
    facts = {"commit": "c" * 40, "binaries": digests}
    gguf = tmp_path / "Q4_K_M.gguf"
    gguf.write_bytes(b"12345")
    sizes = {"prompt_tokens": 512, "output_tokens": 128, "concurrencies": (1, 4)}
    return LlamaServer(Build(tmp_path, facts), gguf, benchmark(tmp_path, **sizes), threads=6)


def vllm(tmp_path: Path, **changes: Any) -> VllmServer:
    settings = Vllm(
        **{
            "version": "0.9.2",
            "dtype": "float16",
            "max_model_len": 640,
            "arguments": ("--enforce-eager",),
            "environment_variables": ("VLLM_USE_V1=0", "VLLM_X=a=b"),
            **changes,
        }
    )
    sizes = {"prompt_tokens": 512, "output_tokens": 128}
    return VllmServer(
        OnThisMachine(PythonEnv("v", tmp_path / "env", "0" * 64)),
        tmp_path,
        settings,
        benchmark(tmp_path, **sizes),
    )


def subject(engine: Any, **changes: Any) -> Subject:
    return Subject(name="a-subject", engine=engine, artifact="f16", **changes)


def value(command: tuple[str, ...], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_llama_server_gets_a_slot_and_context_for_each_concurrent_request(llama: LlamaServer) -> None:
    command = llama.plan(subject("llama_cpp")).command
    assert value(command, "-np") == "4" and value(command, "-c") == str(4 * 768)
    assert value(command, "-t") == "6" and value(command, "--port") == "PORT"


def test_llama_server_runs_with_every_cache_off(llama: LlamaServer) -> None:
    plan = llama.plan(subject("llama_cpp"))
    assert "--no-cache-prompt" in plan.command and value(plan.command, "--cache-ram") == "0"
    assert llama.dialect.completion["cache_prompt"] is False
    assert plan.cache_off[0] == "--no-cache-prompt --cache-ram 0"


def test_without_gpus_llama_server_sees_none_and_gets_no_placement(llama: LlamaServer) -> None:
    plan = llama.plan(subject("llama_cpp"))
    assert plan.environment_variables["CUDA_VISIBLE_DEVICES"] == ""
    assert "-ngl" not in plan.command and "-sm" not in plan.command


def test_with_two_gpus_llama_server_gets_them_and_the_split_mode(
    llama: LlamaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plan = llama.plan(subject("llama_cpp", gpus=2, split_mode="layer", arguments=("-fa", "on")))
    assert plan.environment_variables["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert value(plan.command, "-ngl") == "99" and value(plan.command, "-sm") == "layer"
    assert plan.command[-2:] == ("-fa", "on")


def test_a_number_names_the_card_to_an_engine_that_it_names_to_the_sampler(
    llama: LlamaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA numbers different cards by their speed, unless it is told to do as NVML."""
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    for plan in (llama.plan(subject("llama_cpp", gpus=1)), vllm(tmp_path).plan(subject("vllm", gpus=1))):
        assert plan.environment_variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in llama.plan(subject("llama_cpp")).environment_variables


def test_the_size_of_what_is_served_is_that_of_the_weights_alone(llama: LlamaServer, tmp_path: Path) -> None:
    assert llama.artifact_bytes == 5
    (tmp_path / "a.safetensors").write_bytes(b"123")
    (tmp_path / "tokenizer.json").write_bytes(b"1234567")
    assert vllm(tmp_path).artifact_bytes == 3


def test_vllm_gets_the_studys_settings_then_the_subjects(tmp_path: Path) -> None:
    plan = vllm(tmp_path).plan(subject("vllm", gpus=2, arguments=("--seed", "1")))
    command = plan.command
    assert command[1:4] == ("-m", "vllm.entrypoints.cli.main", "serve")
    assert value(command, "--dtype") == "float16" and value(command, "-tp") == "2"
    assert value(command, "--generation-config") == "vllm"
    assert value(command, "--served-model-name") == "a-subject"
    assert "--no-enable-prefix-caching" in command
    assert command[-3:] == ("--enforce-eager", "--seed", "1")


@pytest.mark.parametrize(
    ("version", "told"), [("0.9.2", False), ("0.26.1", False), ("0.27.0", True), ("0.32.0", True)]
)
def test_vllm_is_asked_for_a_requests_own_times_where_its_version_knows_them(
    version: str, told: bool, tmp_path: Path
) -> None:
    command = vllm(tmp_path, version=version).plan(subject("vllm")).command
    assert ("--enable-per-request-metrics" in command) is told
    assert "--enable-prompt-tokens-details" in command


def test_vllm_runs_offline_with_the_studys_variables(tmp_path: Path) -> None:
    variables = vllm(tmp_path).plan(subject("vllm")).environment_variables
    assert variables["HF_HUB_OFFLINE"] == "1" and variables["VLLM_USE_V1"] == "0"
    assert variables["VLLM_X"] == "a=b"


def test_only_an_emulated_subjects_vllm_finds_and_loads_the_plugin(tmp_path: Path) -> None:
    plain, emulated = (
        vllm(tmp_path).plan(subject("vllm", emulated=emulated)).environment_variables
        for emulated in (False, True)
    )
    assert plain["PYTHONPATH"] == "" and "VLLM_PLUGINS" not in plain
    [entry] = metadata.distributions(path=[emulated["PYTHONPATH"]])
    [point] = entry.entry_points
    assert (point.group, point.name) == ("vllm.general_plugins", emulated["VLLM_PLUGINS"])
    module = Path(emulated["PYTHONPATH"]) / point.module / "__init__.py"
    assert f"def {point.attr}(" in module.read_text()


def test_a_request_that_vllm_would_cut_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="a request takes 640 tokens"):
        vllm(tmp_path, max_model_len=639).plan(subject("vllm"))
