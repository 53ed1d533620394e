"""vLLM in a container: whole command lines, what a study may name, and the errors of a tool that isn't ready."""

from __future__ import annotations

import copy
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import report_fixture
from mock_engine import benchmark
from reproquant.doctor.engines import containers
from reproquant.engines import runtime
from reproquant.engines.runtime import InImage, Shared
from reproquant.engines.vllm import LATENCY, VllmServer
from reproquant.errors import StudyError, ToolError
from reproquant.files import repository
from reproquant.recipe import recipe, recipe_digest
from reproquant.study import Container, Study, Subject, Vllm
from reproquant.toolchain import container
from reproquant.toolchain.container import Image

IMAGE = f"docker.io/vllm/vllm-openai@sha256:{'ab' * 32}"

DOCKER = """
docker run --rm --name reproquant-test --pull never --network host --shm-size 16g --cpuset-cpus CORES
--security-opt label=disable --gpus '"device=0,1"'
--env HF_HUB_OFFLINE=1 --env TRANSFORMERS_OFFLINE=1 --env VLLM_NO_USAGE_STATS=1 --env DO_NOT_TRACK=1
--env PYTHONNOUSERSITE=1 --env PYTHONPATH= --env VLLM_USE_V1=0
--mount type=bind,source={checkpoint},target=/checkpoint,readonly
--entrypoint python3 {image} -m vllm.entrypoints.cli.main serve /checkpoint
--served-model-name tp2 --host 127.0.0.1 --port PORT --enable-prompt-tokens-details
--generation-config vllm --dtype float16 --max-model-len 640 --no-enable-prefix-caching -tp 2 --disable-custom-all-reduce
"""

PODMAN = """
podman run --rm --name reproquant-test --pull never --network host --shm-size 8g --cpuset-cpus CORES
--security-opt label=disable --device nvidia.com/gpu=3
--env HF_HUB_OFFLINE=1 --env TRANSFORMERS_OFFLINE=1 --env VLLM_NO_USAGE_STATS=1 --env DO_NOT_TRACK=1
--env PYTHONNOUSERSITE=1 --env PYTHONPATH= --env VLLM_USE_V1=0
--mount type=bind,source={checkpoint},target=/checkpoint,readonly
--mount type=bind,source={results},target=/results
--mount type=bind,source={program},target=/program,readonly
--entrypoint /opt/venv/bin/python {image} /program/latency.py 1,128 /results
--model /checkpoint --batch-size 1 --input-len 512 --num-iters 5 --num-iters-warmup 2
--generation-config vllm --dtype float16 --max-model-len 640 --no-enable-prefix-caching -tp 1 --disable-custom-all-reduce
"""


def server(folder: Path, **settings: Any) -> VllmServer:
    vllm = Vllm(
        version="0.9.2",
        dtype="float16",
        max_model_len=640,
        arguments=("--disable-custom-all-reduce",),
        environment_variables=("VLLM_USE_V1=0",),
    )
    image = Image(Container(**{"image": IMAGE, **settings}))
    workload = benchmark(folder, prompt_tokens=512, output_tokens=128, native_repetitions=5)
    return VllmServer(InImage(image, "reproquant-test"), folder, vllm, workload)


def subject(**changes: Any) -> Subject:
    return Subject(**{"name": "tp2", "engine": "vllm", "artifact": "checkpoint", "gpus": 2, **changes})


def words(text: str, **places: object) -> tuple[str, ...]:
    return tuple(shlex.split(text.format(image=IMAGE, **places)))


def test_dockers_whole_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plan = server(tmp_path, tool="docker", shm_gib=16).plan(subject())
    assert plan.command == words(DOCKER, checkpoint=tmp_path)
    assert plan.ending == ("docker", "rm", "--force", "--volumes", "reproquant-test")
    assert plan.environment_variables["VLLM_USE_V1"] == "0"
    assert "CUDA_VISIBLE_DEVICES" not in plan.environment_variables


def test_podmans_whole_command_line_for_vllms_own_tool_on_the_gpu_that_a_scheduler_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    engine = server(tmp_path, tool="podman", python="/opt/venv/bin/python")
    results = Shared(tmp_path / "out", "/results", writable=True)
    results.path.mkdir()
    command = engine._bench((1, 128), results, subject(gpus=1))
    assert command == words(PODMAN, checkpoint=tmp_path, results=results.path, program=LATENCY.parent)
    ending = ("podman", "rm", "--force", "--volumes", "--ignore", "--time", "0", "reproquant-test")
    assert engine.plan(subject(gpus=1)).ending == ending


@pytest.mark.parametrize("tool", ["docker", "podman"])
def test_a_subject_without_gpus_is_shown_none(tool: str, tmp_path: Path) -> None:
    command = server(tmp_path, tool=tool).plan(subject(gpus=0)).command
    assert "--gpus" not in command and "--device" not in command
    assert command[command.index("CUDA_VISIBLE_DEVICES=") - 1] == "--env"


def test_the_cores_of_the_launching_thread_go_where_the_plan_says_cores(tmp_path: Path) -> None:
    command = server(tmp_path, tool="docker").plan(subject()).on_port(8123)
    cores = command[command.index("--cpuset-cpus") + 1]
    assert {int(core) for core in cores.split(",")} == runtime.host.os.sched_getaffinity(0)
    assert command[command.index("--port") + 1] == "8123"


def test_every_engine_names_its_container_differently() -> None:
    image = Image(Container(tool="docker", image=IMAGE))
    assert InImage(image).name != InImage(image).name


@pytest.fixture
def config() -> dict[str, Any]:
    return yaml.safe_load((repository() / "config.yaml").read_text())


def study(config: dict[str, Any], **settings: Any) -> Study:
    chosen = {"tool": "docker", "image": IMAGE, **settings}
    environments = {**config["environments"], "vllm": {"container": chosen}}
    return Study.resolve({**copy.deepcopy(config), "environments": environments})


@pytest.mark.parametrize(
    "image",
    [
        "vllm/vllm-openai:latest", "vllm/vllm-openai:v0.9.2", "vllm/vllm-openai", "latest",
        f"vllm/vllm-openai:latest@sha256:{'ab' * 32}", f"vllm/vllm-openai@sha256:{'ab' * 31}",
        f"vllm/vllm-openai@sha512:{'ab' * 32}", f"@sha256:{'ab' * 32}", f"--privileged@sha256:{'ab' * 32}",
    ],
)  # fmt: skip
def test_an_image_without_a_digest_or_with_a_tag_is_refused_with_the_remedy(image: str, config: dict) -> None:
    with pytest.raises(StudyError) as caught:
        study(config, image=image)
    assert "environments.vllm.container.image" in str(caught.value)
    assert "a tag moves, 'latest' above all; give NAME@sha256:" in str(caught.value)


@pytest.mark.parametrize("image", [IMAGE, f"localhost:5000/a/b@sha256:{'0' * 64}", f"mock@sha256:{'0' * 64}"])
def test_an_image_by_digest_is_accepted(image: str, config: dict) -> None:
    assert study(config, image=image).environments.name("vllm") == "container-vllm"


def test_another_vllm_version_has_the_image_looked_at_again(config: dict) -> None:
    wildcards = {"environment": "container-vllm"}
    before = recipe_digest("build_environment", study(config), **wildcards)
    config["vllm"]["version"] = "0.8.5.post1"
    assert recipe_digest("build_environment", study(config), **wildcards) != before


def test_only_vllm_may_come_in_a_container(config: dict) -> None:
    config["environments"]["fp8"] = {"container": {"tool": "docker", "image": IMAGE}}
    with pytest.raises(StudyError, match=r"environments\.fp8\.container: there is no such key"):
        Study.resolve(config)


def test_another_image_or_setting_reruns_the_subjects_of_vllm_and_its_environment_alone(config: dict) -> None:
    stages = (
        ("build_environment", {"environment": "container-vllm"}), ("benchmark", {"subject": "vllm-fp16-tp1"}),
        ("benchmark", {"subject": "llama-f16"}), ("build_environment", {"environment": "fp8"}), ("convert_gguf", {}),
    )  # fmt: skip

    def digests(**settings: Any) -> list[str]:
        return [recipe_digest(stage, study(config, **settings), **wildcards) for stage, wildcards in stages]

    before = digests()
    for settings in ({"image": IMAGE.replace("ab", "cd")}, {"tool": "podman"}, {"shm_gib": 4}):
        changed = [old != new for old, new in zip(before, digests(**settings), strict=True)]
        assert changed == [True, True, False, False, False], settings
    assert recipe("benchmark", study(config), subject="vllm-fp16-tp1")["locks"] == {
        "container-vllm": "ab" * 32
    }


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are looked for, and /bin for a shell's own."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(container.shutil, "which", lambda name: (tmp_path / name).exists() or None)
    return tmp_path


def tool(path: Path, name: str, script: str) -> None:
    """A program that stands in for docker or podman."""
    (path / name).write_text(f"#!/bin/sh\n{script}\n")
    (path / name).chmod(0o755)


def refusal(tool: str, log: Path) -> str:
    with pytest.raises(ToolError) as caught:
        container.provide(Container(tool=tool, image=IMAGE), log)
    return str(caught.value)


def test_a_tool_that_is_not_there_is_one_error(path: Path) -> None:
    assert "container.tool\n  why: there is no podman on this machine" in refusal("podman", path / "log")


def test_a_daemon_that_does_not_answer_is_one_error(path: Path) -> None:
    tool(path, "docker", "echo 'Cannot connect to the Docker daemon.' >&2; exit 1")
    said = refusal("docker", path / "log")
    assert "docker doesn't answer: Cannot connect to the Docker daemon." in said and "systemctl start" in said


def test_an_image_whose_digest_the_tool_does_not_confirm_is_refused(path: Path) -> None:
    tool(path, "docker", """echo '[{"Id": "sha256:1", "RepoDigests": ["vllm/vllm-openai@sha256:2"]}]'""")
    assert "docker gives for docker.io/vllm/vllm-openai@sha256:" in (said := refusal("docker", path / "log"))
    assert "sha256:2" in said


def test_the_doctor_tells_whether_the_tool_is_ready_and_the_image_here(path: Path, config: dict) -> None:
    chosen = study(config)
    (row,) = containers(chosen, None)  # type: ignore[arg-type]
    assert row.verdict == "impossible" and "there is no docker" in row.found
    tool(path, "docker", '[ "$1" = info ]')
    (row,) = containers(chosen, None)  # type: ignore[arg-type]
    assert row.verdict == "warning" and row.remedy == f"docker pull {IMAGE}, or let the run do it"
    tool(path, "docker", "exit 0")
    (row,) = containers(chosen, None)  # type: ignore[arg-type]
    assert row.verdict == "ok"
    assert list(containers(Study.resolve(report_fixture.study("made-up")), None)) == []  # type: ignore[arg-type]
