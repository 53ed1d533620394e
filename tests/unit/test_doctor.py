"""The doctor's verdicts for machines that are as they should be, and for all the ways in which they aren't.

The GPUs are replayed (see replays/): no V100 was at hand.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from nvml_replay import play
from reproquant.cli import app
from reproquant.doctor import Impossible, Reading, as_data, examine, insist, read
from reproquant.doctor.engines import moves
from reproquant.doctor.reading import Host, Source, within
from reproquant.doctor.room import file_bytes, tool_bytes
from reproquant.engines.runtime import OnThisMachine
from reproquant.engines.vllm import VllmServer
from reproquant.errors import ToolError
from reproquant.files import repository
from reproquant.machine.condition import conditions, nvidia_driver
from reproquant.machine.gpu import gpus
from reproquant.machine.host import in_container, under_wsl
from reproquant.machine.links import links, redirecting
from reproquant.stages import STAGES
from reproquant.study import Study, laid_over
from reproquant.toolchain.cmake import Cuda, find_cuda
from reproquant.toolchain.python_env import PythonEnv

SEVEN_B = 15_231_233_024
GPTQ = 5_600_000_000
GOOD = Host(
    memory_bytes=128 << 30,
    free_disk_bytes=500_000_000_000,
    store_disk_bytes=None,
    results_bytes=0,
    shared_memory_bytes=64 << 30,
    governors=("performance",),
    under_wsl=False,
    in_container=False,
    store_in_container_layer=False,
)
Nvml = dict[str, Any]


def study(**over: Any) -> Study:
    """config.yaml with something laid over it; another vLLM as if its lock had been made, too."""
    vllm = dict(over.pop("vllm", {}))
    version = vllm.pop("version", None)
    config = yaml.safe_load((repository() / "config.yaml").read_text())
    chosen = Study.resolve(laid_over(config, {**over, "vllm": vllm}))
    if version is None:
        return chosen
    return chosen.model_copy(update={"vllm": chosen.vllm.model_copy(update={"version": version})})


def embedded() -> Study:
    return Study.of_files([repository() / "workflow/studies/embedded.yaml"])


@dataclass(frozen=True)
class Situation:
    """A machine or a study that differs in one thing, and the checks that must notice it."""

    nvml: Callable[[Nvml], object] = lambda data: None
    machine: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    study: dict[str, Any] = field(default_factory=dict)
    warns: set[str] = field(default_factory=set)
    impossible: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    expected: dict[str, str] = field(default_factory=dict)


def every(name: str, value: Any) -> Callable[[Nvml], None]:
    """Set an answer of both GPUs."""

    def edit(data: Nvml) -> None:
        for device in data["devices"]:
            device[name] = value

    return edit


def both(*edits: Callable[[Nvml], None]) -> Callable[[Nvml], None]:
    return lambda data: [edit(data) for edit in edits] and None


def vllm_checks(*subjects: str, version: str) -> set[str]:
    return {f"vLLM {version}, {subject}" for subject in subjects}


NO_LINKS = every("nvmlDeviceGetNvLinkState", {str(link): 0 for link in range(6)})
NO_PEERS = every("nvmlDeviceGetP2PStatus", {"0": 3, "1": 3})
SERVED = ("vllm-fp16-tp1", "vllm-fp16-tp2", "vllm-gptq-int4")
ANY = (*SERVED, "vllm-fp8-emulated")
WORKS = {**dict.fromkeys(ANY, "works"), "vllm-fp8": "refused"}
CUDA_13 = ToolError(
    "nvcc", "nvcc 13.0.48 can't make machine code for sm_70", "sm_70 needs CUDA >= 12.0 and < 13"
)
H200 = both(
    every("nvmlDeviceGetName", "NVIDIA H200"),
    every("nvmlDeviceGetCudaComputeCapability", [9, 0]),
    every("nvmlDeviceGetMemoryInfo", {"total": 150_754_820_096}),
)
P100 = both(
    every("nvmlDeviceGetName", "Tesla P100-SXM2-16GB"),
    every("nvmlDeviceGetCudaComputeCapability", [6, 0]),
    every("nvmlDeviceGetMemoryInfo", {"total": 17_066_885_120}),
)

SITUATIONS = {
    "two V100 as the article has them": Situation(expected=WORKS),
    "no GPU and no driver": Situation(lambda data: data.pop("devices"), impossible={"GPUs"}, expected=WORKS),
    "cards on the bus that the driver doesn't show": Situation(
        lambda data: data["devices"].clear(), {"cards_on_the_bus": 2}, impossible={"GPUs"},
    ),
    "one of the two cards is gone": Situation(lambda data: data["devices"].pop(), impossible={"GPUs"}),
    "two H200": Situation(
        H200, warns={"GPU model", "compute capability", "CUDA architectures"},
        unknown=vllm_checks(*ANY, "vllm-fp8", version="0.9.2"), expected={"vllm-fp8": "unknown"},
    ),
    "two P100, older than the code that is built": Situation(
        P100, warns={"GPU model", "compute capability"}, impossible={"CUDA architectures", "GPU memory"},
        unknown=vllm_checks(*ANY, version="0.9.2"), expected={"vllm-fp8": "refused"},
    ),
    "two V100 with 16 GB": Situation(
        both(every("nvmlDeviceGetName", "Tesla V100-SXM2-16GB"), every("nvmlDeviceGetMemoryInfo", {"total": 16_945_512_448})),
        warns={"GPU model"}, impossible={"GPU memory"}, expected=WORKS,
    ),
    "an NVSwitch between the cards": Situation(
        both(every("nvmlDeviceGetNvLinkRemotePciInfo", None), every("nvmlDeviceGetNvLinkRemoteDeviceType", {"0": 2})),
    ),
    "NVLink is off": Situation(NO_LINKS, warns={"NVLink"}),
    "NVLink is off and so is peer access": Situation(both(NO_LINKS, NO_PEERS), warns={"NVLink", "peer access"}),
    "PCIe cards whose ACS redirects": Situation(
        both(every("nvmlDeviceGetNvLinkState", None), NO_PEERS), {"acs": True},
        warns={"peer access", "PCIe topology"},
    ),
    "PCIe cards, an IOMMU, and ACS that only root may read": Situation(
        every("nvmlDeviceGetNvLinkState", None), {"acs": None}, unknown={"PCIe topology"},
    ),
    "a card at 86 °C": Situation(every("nvmlDeviceGetTemperature", 86), warns={"temperature"}),
    "a card that heat has throttled": Situation(
        every("nvmlDeviceGetCurrentClocksThrottleReasons", 0x40), warns={"clocks"},
    ),
    "a card at its power limit, which is no fault": Situation(every("nvmlDeviceGetCurrentClocksThrottleReasons", 0x4)),
    "another program computes": Situation(
        every("nvmlDeviceGetComputeRunningProcesses", [4242]), warns={"other programs on the GPUs"},
    ),
    "computing is prohibited": Situation(every("nvmlDeviceGetComputeMode", 2), impossible={"compute mode"}),
    "a card in a slot of four lanes": Situation(every("nvmlDeviceGetCurrPcieLinkWidth", 4), warns={"PCIe width"}),
    "GPUs split by MIG": Situation(every("nvmlDeviceGetMigMode", [1, 1]), warns={"MIG"}),
    "a driver for CUDA 11": Situation(
        lambda data: data["system"].update(nvmlSystemGetCudaDriverVersion=11040), impossible={"driver"},
    ),
    "only CUDA 13": Situation(machine={"toolkit": CUDA_13}, impossible={"nvcc"}),
    "a vLLM without machine code for the card": Situation(
        study={"vllm": {"version": "0.33.0"}}, warns=vllm_checks(*ANY, version="0.33.0"),
        expected={"vllm-fp16-tp1": "refused", "vllm-fp8": "refused"},
    ),
    "a vLLM that is silently slow": Situation(
        study={"vllm": {"version": "0.15.1"}}, warns=vllm_checks(*SERVED, version="0.15.1"),
        unknown=vllm_checks("vllm-fp8-emulated", version="0.15.1"),
        expected={"vllm-fp16-tp1": "slow-path", "vllm-fp8": "refused"},
    ),
    "a vLLM that nobody has looked at": Situation(
        study={"vllm": {"version": "9.9.9"}}, unknown=vllm_checks(*ANY, "vllm-fp8", version="9.9.9"),
        expected={"vllm-fp16-tp1": "unknown"},
    ),
    "vLLM without the switches that Volta needs": Situation(
        study={"vllm": {"arguments": []}}, warns={f"vLLM's switches, {name}" for name in ANY}, expected=WORKS,
    ),
    "bfloat16 on Volta": Situation(study={"vllm": {"dtype": "bfloat16"}}, warns={"vLLM's dtype"}),
    "an image by its tag": Situation(
        study={"vllm": {"arguments": ["--no-enable-chunked-prefill", "vllm/vllm-openai:latest"]}}, warns={"pins"},
    ),
    "a disk that is too small": Situation(host={"free_disk_bytes": 30_000_000_000}, impossible={"disk"}),
    "a disk that is full of this study's own results": Situation(
        host={"free_disk_bytes": 1_000_000_000, "results_bytes": 80_000_000_000},
    ),
    "a store on a small disk of its own": Situation(
        host={"store_disk_bytes": 5_000_000_000}, impossible={"disk of the store"},
    ),
    "results on a small disk that needn't hold the store": Situation(
        host={"free_disk_bytes": 60_000_000_000, "store_disk_bytes": 50_000_000_000},
    ),
    "little main memory": Situation(host={"memory_bytes": 4 << 30}, warns={"memory"}),
    "a container as docker starts it": Situation(
        host={"in_container": True, "store_in_container_layer": True, "shared_memory_bytes": 64 << 20},
        warns={"/dev/shm", "store"},
    ),
    "the powersave governor": Situation(host={"governors": ("powersave",)}, warns={"CPU governor"}),
    "WSL": Situation(host={"under_wsl": True}, warns={"system"}),
    "a Hub that can't be reached": Situation(
        machine={"source": Source(None, "the Hub can't be reached (ConnectError)")}, warns={"model"}, unknown={"disk"},
    ),
    "a checkpoint of others that the Hub hasn't got": Situation(
        machine={"checkpoints": {"gptq-int4": Source(None, "the Hub has no such repository", hopeless=True)}},
        impossible={"checkpoints.gptq-int4"}, unknown={"disk"},
    ),
    "a commit that the Hub hasn't got": Situation(
        machine={"source": Source(None, "the repository has no such commit", hopeless=True)},
        impossible={"model"}, unknown={"disk"},
    ),
}  # fmt: skip


def bus(folder: Path, acs: bool | None) -> tuple[Path, Path]:
    """sysfs as it shows two GPUs below one bridge: the PCI devices and the IOMMU's groups."""
    real = folder / "devices/pci0000:00"
    for name in ("0000:02:00.0", "0000:03:00.0"):
        device = real / "0000:00:02.0" / name
        device.mkdir(parents=True)
        (folder / "pci").mkdir(exist_ok=True)
        (folder / "pci" / name).symlink_to(device)
    head = bytes(0x100) + struct.pack("<IHH", 0x000D | 1 << 16, 0x5F, 0b1100 if acs else 0)
    config = bytes(64) if acs is None else head.ljust(4096, b"\0")
    (real / "0000:00:02.0/config").write_bytes(config)
    (folder / "iommu/1").mkdir(parents=True)
    return folder / "pci", folder / "iommu"


def reading(situation: Situation, tmp_path: Path, patch: pytest.MonkeyPatch) -> Reading:
    """The machine of a situation: replayed GPUs through the real readers, the rest as given."""
    play(patch, situation.nvml)
    machine = dict(situation.machine)
    found = Reading(
        gpus=tuple(gpus()),
        conditions=tuple(conditions()),
        driver=nvidia_driver(),
        links=links(*bus(tmp_path, machine.pop("acs", False))),
        cards_on_the_bus=0,
        host=replace(GOOD, **situation.host),
        toolkit=Cuda(Path("/usr/local/cuda-12.9"), "12.9.86"),
        source=Source(SEVEN_B),
        checkpoints={"gptq-int4": Source(GPTQ)},
    )
    return replace(found, **machine)


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_gets_the_right_verdicts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    situation = SITUATIONS[name]
    found = reading(situation, tmp_path, monkeypatch)
    chosen = study(**situation.study)
    checks = examine(chosen, found)
    verdicts = {check.name: check.verdict for check in checks if check.verdict != "ok"}
    assert verdicts == {
        **dict.fromkeys(situation.warns, "warning"),
        **dict.fromkeys(situation.impossible, "impossible"),
        **dict.fromkeys(situation.unknown, "unknown"),
    }
    assert all(check.remedy for check in checks if check.verdict in ("warning", "impossible"))
    data = as_data(chosen, checks, found)
    assert data["possible"] is not bool(situation.impossible)
    planned = {subject: row["verdict"] for subject, row in data["expected"].items()}
    assert planned | situation.expected == planned


def test_there_are_at_least_fifteen_situations() -> None:
    assert len(SITUATIONS) >= 15


def test_only_the_impossible_stops_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hot = reading(SITUATIONS["a card at 86 °C"], tmp_path / "hot", monkeypatch)
    insist(study(), examine(study(), hot), STAGES)
    gone = reading(SITUATIONS["no GPU and no driver"], tmp_path / "gone", monkeypatch)
    with pytest.raises(Impossible, match="GPUs: found 0, needed 2") as stopped:
        insist(study(), examine(study(), gone), STAGES)
    assert "run on a machine with 2 GPUs" in stopped.value.remedy


@pytest.mark.parametrize(
    "situation, stopped",
    [
        ("no GPU and no driver", {"benchmark", "benchmark_again"}),
        ("computing is prohibited", {"benchmark", "benchmark_again"}),
        ("a driver for CUDA 11", {"benchmark", "benchmark_again"}),
        ("two V100 with 16 GB", {"benchmark", "benchmark_again"}),
        ("only CUDA 13", {"build_llama_cpp"}),
        ("a commit that the Hub hasn't got", {"fetch_model"}),
        ("a checkpoint of others that the Hub hasn't got", {"fetch_checkpoint"}),
        ("a disk that is too small", set(STAGES)),
    ],
)
def test_what_is_impossible_stops_only_the_stages_that_need_it(
    situation: str, stopped: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = examine(study(), reading(SITUATIONS[situation], tmp_path, monkeypatch))
    found = {name for name in STAGES if any(check.stops({name}) for check in checks)}
    assert found == stopped


def test_hidden_cards_are_blamed_on_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = SITUATIONS["cards on the bus that the driver doesn't show"]
    checks = examine(study(), reading(hidden, tmp_path, monkeypatch))
    assert "R580" in next(check.remedy for check in checks if check.name == "GPUs")


def test_a_local_model_that_isnt_mounted_gets_that_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = study(model={"source": "local", "local": {"path": "/models/qwen", "licence": "Apache-2.0"}})
    inside = Situation(
        host={"in_container": True},
        machine={"source": Source(None, "there is no directory /models/qwen", hopeless=True)},
    )
    checks = {check.name: check for check in examine(chosen, reading(inside, tmp_path, monkeypatch))}
    assert checks["model"].verdict == "impossible"
    assert "an image holds no weights" in checks["model"].remedy


def test_an_unexpected_refusal_is_told_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects = [subject.model_dump(exclude={"expected"}) for subject in study().subjects]
    chosen = study(subjects=subjects)
    checks = {check.name: check for check in examine(chosen, reading(Situation(), tmp_path, monkeypatch))}
    assert checks["vLLM 0.9.2, vllm-fp8"].verdict == "warning"
    assert "compute capability 8.0" in checks["vLLM 0.9.2, vllm-fp8"].found


@pytest.mark.parametrize(
    "subject, devices, parallel", [("vllm-fp16-tp1", "0", "1"), ("vllm-fp16-tp2", "0,1", "2")]
)
def test_the_planned_command_fits_the_cards(
    subject: str, devices: str, parallel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    chosen = study()
    environment = PythonEnv("vllm-v100", tmp_path, "0" * 64)
    plan = VllmServer(OnThisMachine(environment), tmp_path, chosen.vllm, chosen.benchmark).plan(
        chosen.subject(subject)
    )
    assert plan.environment_variables["CUDA_VISIBLE_DEVICES"] == devices
    command = list(plan.command)
    assert command[command.index("-tp") + 1] == parallel
    assert {"--no-enable-chunked-prefill", "--disable-custom-all-reduce", "float16"} <= set(command)


def test_the_embedded_study_is_possible_on_this_machine_and_is_told_so_in_five_seconds(
    tmp_path: Path,
) -> None:
    started = time.monotonic()
    chosen = embedded()
    found = read(chosen, tmp_path)
    checks = examine(chosen, found)
    assert time.monotonic() - started < 5
    assert [check for check in checks if check.verdict == "impossible"] == []
    assert as_data(chosen, checks, found)["expected"]["vllm-fp8"]["verdict"] == "refused"


def test_no_gpu_is_needed_where_the_study_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = replace(reading(SITUATIONS["no GPU and no driver"], tmp_path, monkeypatch), checkpoints={})
    insist(embedded(), examine(embedded(), bare), STAGES)


def test_an_nvcc_of_cuda_13_is_refused_by_what_it_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = tmp_path / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\ncase $1 in --version) echo V13.0.48;; *) echo sm_75; echo sm_90;; esac\n")
    nvcc.chmod(0o755)
    with pytest.raises(ToolError) as error:
        find_cuda(str(tmp_path / "cuda"), [70])
    only_13 = Situation(machine={"toolkit": error.value})
    checks = {check.name: check for check in examine(study(), reading(only_13, tmp_path, monkeypatch))}
    assert checks["nvcc"].verdict == "impossible"
    assert "CUDA >= 12.0 and < 13" in checks["nvcc"].remedy


@pytest.mark.parametrize(
    "text, moving",
    [
        ("vllm/vllm-openai:latest", True),
        ("vllm/vllm-openai:v0.8.5.post1", True),
        ("--revision=main", True),
        ("main", True),
        ("vllm/vllm-openai@sha256:" + "0" * 64, False),
        ("https://github.com/ggml-org/llama.cpp", False),
        ("workflow/data/prompt_zh.txt", False),
        ("a09a35458c702b33eeacc393d103063234e8bc28", False),
    ],
)
def test_what_moves_is_told_from_what_doesnt(text: str, moving: bool) -> None:
    assert moves(text) is moving


def test_the_disk_for_the_v100_study_is_what_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = file_bytes(study(), reading(Situation(), tmp_path, monkeypatch))
    tools = tool_bytes(study())
    assert files is not None and 60e9 < files + tools < 80e9


def test_an_environment_that_lies_in_the_store_needs_no_room() -> None:
    assert tool_bytes(study()) - tool_bytes(study(), frozenset({"vllm-v100"})) > 5e9


def test_acs_is_read_as_root_and_unknown_otherwise(tmp_path: Path) -> None:
    buses = ["00000000:02:00.0", "00000000:03:00.0"]
    for acs, expected in ((True, ("0000:00:02.0",)), (False, ()), (None, None)):
        pci, _ = bus(tmp_path / str(acs), acs)
        assert redirecting(buses, pci) == expected


def test_a_question_without_an_answer_is_given_up() -> None:
    started = time.monotonic()
    assert within(0.05, lambda: time.sleep(1)) is None
    assert time.monotonic() - started < 0.5


def test_the_command_prints_a_table_with_remedies_and_exits_2_for_the_impossible(tmp_path: Path) -> None:
    over = tmp_path / "gone.yaml"
    over.write_text("model: {source: local, local: {path: /nowhere, licence: none}}\n")
    base = repository() / "workflow/studies/embedded.yaml"
    fine = CliRunner().invoke(app, ["doctor", str(base), "--json"])
    assert fine.exit_code == 0
    data = json.loads(fine.stdout)
    assert data["possible"] is True
    assert {"name", "verdict", "found", "needed", "remedy", "stages"} == data["checks"][0].keys()
    gone = CliRunner().invoke(app, ["doctor", str(base), str(over)])
    assert gone.exit_code == 2
    assert "there is no directory /nowhere" in gone.stdout and "do: correct model.local.path" in gone.stdout


class LoginPage(BaseHTTPRequestHandler):
    """What a network answers instead of the Hub."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>Log in</html>")


@pytest.mark.parametrize(
    ("repository", "found"),
    [
        ("a--b/c", "no repository can have this name"),
        ("a/b", "the Hub can't be reached (JSONDecodeError)"),
    ],
)
def test_a_name_that_cant_be_and_a_login_page_for_an_answer_are_rows_of_the_table(
    repository: str, found: str, tmp_path: Path
) -> None:
    spec = {"repository": repository, "revision": "0" * 40, "licence": "none"}
    over = tmp_path / "over.yaml"
    over.write_text(json.dumps({"model": {"name": "m", "source": "hub", "hub": spec}}))
    with HTTPServer(("127.0.0.1", 0), LoginPage) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "hf")}
        command = [Path(sys.executable).with_name("reproquant"), "doctor", over, "--json"]
        done = subprocess.run(
            command, env={**os.environ, **where}, capture_output=True, text=True, check=False
        )
        server.shutdown()
    row = next(one for one in json.loads(done.stdout)["checks"] if one["name"] == "model")
    assert row["found"].startswith(found) and "Traceback" not in done.stderr


def test_a_study_file_that_isnt_there_is_one_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / "no.yaml")])
    assert done.exit_code == 2
    assert "no.yaml" in done.stderr and "Traceback" not in done.output


def test_files_are_laid_over_each_other_as_snakemake_does(tmp_path: Path) -> None:
    over = tmp_path / "over.yaml"
    over.write_text("benchmark: {rounds: 7, concurrencies: [2]}\n")
    chosen = Study.of_files([repository() / "workflow/studies/embedded.yaml", over])
    assert (chosen.benchmark.rounds, chosen.benchmark.concurrencies) == (7, (2,))
    assert chosen.benchmark.output_tokens == embedded().benchmark.output_tokens


def test_windows_and_containers_are_told_by_their_marks(tmp_path: Path) -> None:
    release = tmp_path / "osrelease"
    release.write_text("5.15.153.1-microsoft-standard-WSL2\n")
    assert under_wsl(release) is True
    release.write_text("6.1.0-13-amd64\n")
    assert under_wsl(release) is False
    assert in_container([tmp_path / "none"]) is ("APPTAINER_CONTAINER" in os.environ)
    assert in_container([release]) is True
