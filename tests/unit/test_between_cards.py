"""Several cards: their links, the engine's words for the way between them, and the variables that decide it.

No machine with two cards was at hand: NVML is replayed, and the log's lines are
made of the texts in the engines' sources.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import report_fixture
from mock_engine import MockEngine, benchmark, subject, write_prompt
from nvml_replay import play
from reproquant import process, report
from reproquant.bench.measurement import Measurement
from reproquant.bench.protocol import measure
from reproquant.engines.base import Plan
from reproquant.engines.between_cards import handed_on, said
from reproquant.files import read_json, repository, write_json, write_text
from reproquant.machine import host
from reproquant.machine.links import links
from reproquant.study import Subject
from test_engines_plans import llama, vllm
from test_engines_plans import subject as planned
from test_runtime import server as in_docker

__all__ = ["llama"]

BACKENDS = (
    "Using ['CUSTOM', 'SYMM_MEM', 'PYNCCL'] all-reduce backends (in dispatch order) for group 'tp:0' out of "
    "potential backends: ['NCCL_SYMM_MEM', 'QUICK_REDUCE', 'FLASHINFER', 'CUSTOM', 'SYMM_MEM', 'PYNCCL']."
)
NO_PEERS = (
    "Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed. To "
    "silence this warning, specify disable_custom_all_reduce=True explicitly."
)
NO_MULTICAST = "SymmMemCommunicator: symmetric memory multicast operations are not supported."
NO_FLASHINFER = "FlashInfer All Reduce is disabled because flashinfer is not available"
NO_NCCL = "NCCL not compiled in; falling back to internal AllReduce"
PIPELINE = "initialized AllReduce pipeline: 2 GPUs, 1024 KB chunked kernel staging + 32 MB copy-engine staging per GPU"
CARD = "using device CUDA1 (NVIDIA H200) (0000:1b:00.0)"
ON_THE_CPU = "backend sampling not supported with SPLIT_MODE_TENSOR; using CPU"
CHANNELS = "24 coll channels, 24 collnet channels, 0 nvls channels"


@pytest.mark.parametrize(
    ("engine", "line", "words", "about"),
    [
        ("vllm", f"(Worker_TP0 pid=41) INFO 12-01 11:21:24 [cuda_communicator.py:232] {BACKENDS}", BACKENDS, "order"),
        ("vllm", f"(Worker_TP1 pid=42) WARNING 12-01 11:21:24 [custom_all_reduce.py:164] {NO_PEERS}", NO_PEERS, "is off"),
        ("vllm", "INFO 12-01 11:21:24 [pynccl.py:70] vLLM is using nccl==2.26.2", "vLLM is using nccl==2.26.2", "loaded"),
        ("vllm", "config: dtype=torch.half, disable_custom_all_reduce=True, quantization=None", "disable_custom_all_reduce=True", "forbid"),
        ("vllm", "INFO [custom_all_reduce.py:196] Registering 4928 cuda graph addresses", "Registering 4928 cuda graph addresses", "is on"),
        ("vllm", f"INFO [flashinfer_all_reduce.py:240] {NO_FLASHINFER}", NO_FLASHINFER, "FlashInfer"),
        ("vllm", "WARNING [flashinfer_all_reduce.py:74] Failed to initialize FlashInfer All Reduce workspace: no.", "Failed to initialize FlashInfer All Reduce workspace: no.", "FlashInfer"),
        ("vllm", f"WARNING [symm_mem.py:106] {NO_MULTICAST}", NO_MULTICAST, "multicasts"),
        ("vllm", f"host7:41:52 [0] NCCL INFO {CHANNELS}, 32 p2p channels", CHANNELS, "nvls"),
        ("llama_cpp", "host7:41:52 [0] NCCL INFO Channel 07/0 : 2[2] -> 3[3] via P2P/CUMEM", "via P2P/CUMEM", "NCCL's channels"),
        ("llama_cpp", f"0.01.204.672 W {NO_NCCL}.  Recompile with -DGGML_CUDA_NCCL=ON for best multi-GPU performance.", NO_NCCL, "isn't used"),
        ("llama_cpp", f"0.01.204.672 I ggml_cuda_ar_pipeline_init: {PIPELINE}", PIPELINE, "its own all-reduce"),
        ("llama_cpp", f"0.00.282.647 I llama_prepare_model_devices: {CARD} - 143000 MiB free", CARD, "a card"),
        ("llama_cpp", "0.00.473.421 I load_tensors:        CUDA1 model buffer size =  2231.72 MiB", "CUDA1 model buffer size =  2231.72 MiB", "weights"),
        ("llama_cpp", "0.00.491.188 I llama_context: pipeline parallelism enabled", "pipeline parallelism enabled", "at the same time"),
        ("llama_cpp", f"0.02.100.000 W set_sampler: {ON_THE_CPU}", ON_THE_CPU, "isn't obeyed"),
    ],
)  # fmt: skip
def test_the_words_for_the_way_between_cards_are_quoted_without_times_processes_and_hosts(
    engine: str, line: str, words: str, about: str
) -> None:
    (found,) = said(engine, f"loading\n{line}\nlistening\n")
    assert found.words == words and about in found.about


def test_what_every_worker_and_every_launch_says_is_quoted_once_and_the_command_is_not_quoted() -> None:
    launch = "".join(f"(Worker_TP{rank} pid=4{rank}) WARNING [a.py:1] {NO_PEERS}\n" for rank in range(4))
    log = f"$ vllm serve --note 'vLLM is using nccl==1'\n{launch}$ vllm serve\n{launch}"
    assert [found.words for found in said("vllm", log)] == [NO_PEERS]


def test_a_log_of_one_card_says_nothing_of_the_way_between_cards() -> None:
    log = "0.00.003.500 I srv    load_model: loading model 'a.gguf'\n0.00.334.854 I srv  llama_server: model loaded\n"
    assert said("llama_cpp", log) == said("vllm", log) == []


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A shell that turns multicast over NVLink off, and says nothing else of the kind."""
    for name in handed_on():
        monkeypatch.delenv(name)
    for name, value in MULTICAST_OFF.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


MULTICAST_OFF = {
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


def test_what_turns_multicast_off_stands_in_every_plan_and_a_hosts_name_in_none(
    shell: pytest.MonkeyPatch, llama: Any, tmp_path: Path
) -> None:
    shell.setenv("NCCL_HOSTID", "host7")
    shell.setenv("GGML_CUDA_ALLREDUCE", "internal")
    expected = {**MULTICAST_OFF, "GGML_CUDA_ALLREDUCE": "internal"}
    for plan in (llama.plan(planned("llama_cpp", gpus=2)), vllm(tmp_path).plan(planned("vllm", gpus=2))):
        assert {name: plan.environment_variables[name] for name in expected} == expected
        assert "NCCL_HOSTID" not in plan.environment_variables


def test_the_studys_own_value_goes_before_the_shells(shell: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = vllm(tmp_path, environment_variables=("NCCL_NVLS_ENABLE=1",))
    assert engine.plan(planned("vllm")).environment_variables["NCCL_NVLS_ENABLE"] == "1"


def test_a_container_is_told_what_turns_multicast_off(shell: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = in_docker(tmp_path, tool="docker").plan(planned("vllm", gpus=2)).command
    told = {word for flag, word in pairwise(command) if flag == "--env"}
    assert {f"{name}={value}" for name, value in MULTICAST_OFF.items()} <= told


def test_a_started_program_sees_what_turns_multicast_off(shell: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process.run(["/bin/sh", "-c", "echo it is $NCCL_NVLS_ENABLE"], tmp_path / "log", {"OTHER": "1"})
    assert "it is 0\n" in (tmp_path / "log").read_text()


class Talkative(MockEngine):
    """A mock engine whose server says ``words`` before it serves."""

    def __init__(self, words: str) -> None:
        super().__init__(times_ms=(10.0, 5.0))
        self._words = words

    def plan(self, subject: Subject) -> Plan:
        served = super().plan(subject)
        variables = {**handed_on(), **served.environment_variables}
        return Plan(
            ("/bin/sh", "-c", 'echo "$0"; exec "$@"', self._words, *served.command), variables, ("none",)
        )


def measured(
    patch: pytest.MonkeyPatch,
    folder: Path,
    words: str,
    gpus: int,
    edit: Callable[[dict[str, Any]], object] = lambda data: None,
) -> Measurement:
    """The steady mock, measured on replayed cards; what stood in its log before is another run's."""
    patch.setattr(host, "busy_share", lambda: 0.0)
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    play(patch, edit)
    (folder / "log").write_text("WARNING [a.py:1] vLLM is using nccl==1.0.0\n")
    prompt = write_prompt(folder)
    workload = benchmark(prompt, concurrencies=(1,)).model_copy(update={"energy_seconds": 0})
    return measure(Talkative(words), subject("steady", gpus=gpus), workload, folder / "log")


def second_idle(data: dict[str, Any]) -> None:
    first, second = data["devices"]
    first["nvmlDeviceGetUtilizationRates"] = {"gpu": 97, "memory": 60}
    first["nvmlDeviceGetPowerUsage"] = 290_000
    for card in (first, second):
        card["nvmlDeviceGetNvLinkState"]["5"] = 0


def four_cards(data: dict[str, Any]) -> None:
    """Four cards without NVLink; the last two pairs' peer access isn't told."""
    card = {**data["devices"][0], "nvmlDeviceGetNvLinkState": {}, "nvmlDeviceGetP2PStatus": {"1": 0, "2": 0}}
    card["nvmlDeviceGetTopologyCommonAncestor"] = {"1": 10, "2": 50, "3": 50}
    data["devices"] = [{**card, "nvmlDeviceGetUUID": f"GPU-{index}"} for index in range(4)]


def test_the_links_of_the_cards_and_the_engines_words_stand_in_the_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = measured(monkeypatch, tmp_path, f"WARNING [a.py:1] {NO_PEERS}", 2, second_idle)
    between = result.between_cards
    assert between
    assert [(card.index, card.active, card.nvlinks) for card in between.cards] == [(0, 5, 6), (1, 5, 6)]
    (pair,) = between.pairs
    assert (pair.nvlinks, pair.peer_access, pair.joined_by) == (5, True, "one PCIe host bridge")
    assert [one.words for one in between.said] == [NO_PEERS]


def test_only_the_cards_that_a_subject_was_given_are_written_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    between = measured(monkeypatch, tmp_path, "ready", 3, four_cards).between_cards
    assert between and [card.index for card in between.cards] == [0, 1, 2] and between.said == []
    assert [(pair.first, pair.second, pair.peer_access) for pair in between.pairs] == [
        (0, 1, True), (0, 2, True), (1, 2, True),
    ]  # fmt: skip
    assert [pair.joined_by for pair in between.pairs] == [
        "one PCIe switch",
        "two NUMA nodes",
        "two NUMA nodes",
    ]
    assert measured(monkeypatch, tmp_path, BACKENDS, 1, four_cards).between_cards is None


TOPOLOGY = """\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV6\t0-39\t0\t\tN/A
GPU1\tNV6\t X \t0-39\t0\t\tN/A"""


@pytest.fixture
def nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A mock of the driver's tool, which underlines the head of its table."""
    tool = tmp_path / "bin/nvidia-smi"
    head, *rest = TOPOLOGY.splitlines()
    written = "\n".join([head.replace("\t", "\t\x1b[4m", 1) + "\x1b[0m", *rest])
    write_text(tool, f"#!/bin/sh\n[ \"$*\" = 'topo -m' ] || exit 2\ncat <<'END'\n{written}\n\nEND\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    return tool


def test_the_topology_is_kept_as_the_drivers_tool_prints_it_without_the_terminals_styles(
    nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch)
    assert links().topology == TOPOLOGY
    nvidia_smi.write_text("#!/bin/sh\necho 'Failed to initialize NVML'; exit 9\n")
    assert links().topology is None
    nvidia_smi.unlink()
    monkeypatch.setenv("PATH", "")
    assert links().topology is None


def test_one_card_has_no_topology(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, lambda data: data["devices"].pop())
    assert links().topology is None


def test_a_measurement_from_before_there_were_links_still_loads() -> None:
    kept = repository() / "published/h200-2026-12-01/bench/vllm-fp16.json"
    assert Measurement.model_validate(read_json(kept)).between_cards is None


@pytest.fixture
def reported(shell: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], tuple[str, str]]:
    """Gives report.md and the page, after a subject was measured on two cards of which one was idle."""

    def build(words: str) -> tuple[str, str]:
        found = measured(shell, tmp_path, words, 2, second_idle).model_dump(mode="json")
        results = report_fixture.make_results(tmp_path)
        path = results / "bench/llama-q4km.json"
        taken = ("hardware", "machine", "watched", "between_cards", "environment_variables")
        built = {"engine_facts": {"cuda": {"toolkit": "12.4", "nccl": None}}}
        write_json(path, {**read_json(path), **{key: found[key] for key in taken}, **built})
        report.build(results, results / "report")
        return (results / "report/report.md").read_text(), (results / "report/index.html").read_text()

    return build


def test_an_idle_second_card_of_a_subject_stands_beside_the_busy_first(
    reported: Callable[[str], tuple[str, str]],
) -> None:
    text, page = reported("ready")
    section = text.split("## Several cards")[1].split("\n## ")[0]
    assert "| llama-q4km | GPU 0 | 97.0 % | 0 B | 290 W | 5 of 6 |" in section
    assert "| llama-q4km | GPU 1, idle | 0 % | 0 B | 55.0 W | 5 of 6 |" in section
    assert "| llama-q4km | GPU 0 and 1 | 5 | yes | one PCIe host bridge |" in section
    assert "llama-f16" not in section
    assert (
        "GPU <a" in page
        and ", idle</span>" in page
        and 'href="#number:llama-q4km.gpu1.utilization_percent"' in page
    )


def test_the_report_quotes_the_way_between_cards_and_what_was_handed_on(
    reported: Callable[[str], tuple[str, str]],
) -> None:
    text, page = reported(f"WARNING [a.py:1] {NO_MULTICAST}")
    assert f"symmetric memory, which multicasts over NVLink: “{NO_MULTICAST}”" in text
    assert (
        f'<q><span class="quote" title="bench/llama-q4km.json /between_cards/said/0/words">{NO_MULTICAST}'
        in page
    )
    assert "- llama-q4km, variable: NCCL\\_NVLS\\_ENABLE=0" in text
    assert "- llama-q4km, built with: no NCCL: CMake found none" in text


def test_the_topology_stands_in_the_report_unchanged(
    nvidia_smi: Path, reported: Callable[[str], tuple[str, str]]
) -> None:
    text, page = reported("ready")
    indented = "\n".join(f"    {line}" for line in TOPOLOGY.splitlines())
    assert f"`nvidia-smi topo -m`, as llama-q4km met it:\n\n{indented}\n" in text
    assert page.count(f'/between_cards/topology">{TOPOLOGY}</span>') == 1


def test_a_log_that_tells_nothing_is_reported_as_such(reported: Callable[[str], tuple[str, str]]) -> None:
    text, page = reported("ready")
    assert "- llama-q4km: its log doesn't say which way it took between its cards." in text
    assert "its log doesn't say" in page
