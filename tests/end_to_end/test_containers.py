"""vLLM's container runtime for real, with podman and docker; in the image is the mock token server, named so.

Skipped, with the reason, where a tool can't run a container. docker knows an
image's digest from a registry alone: its tests need Debian's docker-registry,
which they run on a loopback port, and a daemon.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mock_image
from mock_engine import WIDE, benchmark, subject
from reproquant.bench.protocol import measure
from reproquant.engines.base import free_port
from reproquant.engines.runtime import InImage
from reproquant.engines.vllm import VllmServer
from reproquant.errors import StudyError, ToolError
from reproquant.files import repository
from reproquant.study import Container, Vllm
from reproquant.toolchain import container

ULIMITS = 'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]'
"""podman's own are above what a process without CAP_SYS_RESOURCE, as in a container, may set."""

WIDER = WIDE.model_copy(update={"decode_native_percent": 1000, "decode_native_flag_percent": 1000})

WAYS = {
    "as it is installed": f"[containers]\n{ULIMITS}\n",
    "with cgroupfs": f'[containers]\n{ULIMITS}\n[engine]\ncgroup_manager = "cgroupfs"\n',
    "with runc": f'[containers]\n{ULIMITS}\n[engine]\ncgroup_manager = "cgroupfs"\nruntime = "runc"\n',
    "without cgroups": f'[containers]\ncgroups = "disabled"\n{ULIMITS}\n[engine]\ncgroup_manager = "cgroupfs"\n',
}


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "image.tar"
    mock_image.write(path)
    return path


@pytest.fixture(scope="module", params=["podman", "docker"])
def image(
    request: pytest.FixtureRequest, tar: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    """The mock's image, pinned by digest, and a tool that runs it here."""
    if refusal := container.unready(request.param):
        pytest.skip(f"{refusal.reason}; do: {refusal.remedy}")
    folder = tmp_path_factory.mktemp(request.param)
    with {"podman": of_podman, "docker": of_docker}[request.param](tar, folder) as pinned:
        yield Container(tool=request.param, image=pinned)


@contextmanager
def of_podman(tar: Path, folder: Path) -> Iterator[str]:
    """The image in a store of the test's own, and podman set up so that it runs here."""
    roots = f'graphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
    (folder / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\n{roots}')
    (folder / "containers.conf").write_text(WAYS["with cgroupfs"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        said = ask("podman", "import", "--quiet", tar, "localhost/mock-token-server")
        if said.returncode:
            pytest.skip(f"podman can't import an image here: {said.stderr.strip()}")
        (facts,) = json.loads(ask("podman", "image", "inspect", "localhost/mock-token-server").stdout)
        pinned = f"localhost/mock-token-server@{facts['Digest']}"
        _set_up(folder / "containers.conf", pinned)
        yield pinned
        ask("podman", "rmi", "--all", "--force")


def _set_up(file: Path, image: str) -> None:
    """Find the way in which podman runs a container on this machine, or skip."""
    words = []
    for way, text in WAYS.items():
        file.write_text(text)
        done = ask("podman", "run", "--rm", "--network", "host", "--entrypoint", "python3", image, "-c", "")
        if done.returncode == 0:
            return
        words.append(f"{way}: {(done.stderr.strip().splitlines() or ['no words'])[-1]}")
    pytest.skip("podman can't run a container here; " + "; ".join(words))


@contextmanager
def of_docker(tar: Path, folder: Path) -> Iterator[str]:
    """The image in docker's own store, by the digest that a registry of the test's gave it."""
    if shutil.which("docker-registry") is None:
        pytest.skip("there is no docker-registry; do: apt-get install docker-registry")
    port = free_port()
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (folder / "registry.yml").write_text(json.dumps(settings))
    with (folder / "registry.log").open("w") as log:
        registry = subprocess.Popen(
            ["docker-registry", "serve", folder / "registry.yml"], stdout=log, stderr=log
        )
    name = f"127.0.0.1:{port}/mock-token-server"
    try:
        assert ask("docker", "import", tar, f"{name}:made").returncode == 0
        deadline = time.monotonic() + 60
        while (said := ask("docker", "push", f"{name}:made")).returncode and time.monotonic() < deadline:
            time.sleep(0.2)
        assert said.returncode == 0, said.stderr
        (facts,) = json.loads(ask("docker", "image", "inspect", f"{name}:made").stdout)
        yield facts["RepoDigests"][0]
        ask("docker", "rmi", "--force", facts["Id"])
    finally:
        registry.kill()
        registry.wait()


def ask(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


def server(image: Container, folder: Path, **changes: Any) -> VllmServer:
    """The engine on a folder with one file; its vLLM is the mock."""
    checkpoint = folder / "model"
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "model.safetensors").write_bytes(b"12345")
    settings = Vllm(
        version=mock_image.VERSION, dtype="float16", max_model_len=64, environment_variables=("VLLM_X=a b",)
    )
    (folder / "prompt.txt").write_text("".join(map(chr, range(0x4E00, 0x4E00 + 500))))
    workload = benchmark(folder / "prompt.txt", **changes)
    return VllmServer(InImage(container.provide(image, folder / "pull.log")), checkpoint, settings, workload)


def containers(image: Container) -> list[str]:
    """The names of the containers that the engine has started and that are still there."""
    names = ask(image.tool, "ps", "--all", "--format", "{{.Names}}").stdout.split()
    return [name for name in names if name.startswith("reproquant-")]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_in_a_container_is_healthy_sees_its_checkpoint_and_is_gone_after_stop(
    image: Container, tmp_path: Path
) -> None:
    engine = server(image, tmp_path)
    endpoint = engine.launch(engine.plan(subject("steady")), tmp_path / "log")
    assert len(containers(image)) == 1 and listens(endpoint.port)
    assert len(engine.processes()) >= 1
    engine.stop()
    assert containers(image) == [] and not listens(endpoint.port) and engine.processes() == []
    said = (tmp_path / "log").read_text()
    assert "MOCK sees {'model.safetensors': 5} read-only" in said
    assert "MOCK has {'VLLM_X': 'a b', 'HF_HUB_OFFLINE': '1'}" in said


def test_links_of_a_checkpoint_lead_to_their_files_in_a_container_too(
    image: Container, tmp_path: Path
) -> None:
    engine = server(image, tmp_path)
    (elsewhere := tmp_path / "elsewhere.json").write_text("{}")
    (tmp_path / "model/config.json").symlink_to(elsewhere)
    engine.launch(engine.plan(subject("steady")), tmp_path / "log")
    engine.stop()
    assert "MOCK sees {'config.json': 2, 'model.safetensors': 5}" in (tmp_path / "log").read_text()


def test_a_subject_is_measured_through_a_container(image: Container, tmp_path: Path) -> None:
    engine = server(image, tmp_path, output_tokens=16, native_repetitions=2, limits=WIDER)
    found = measure(engine, subject("steady"), engine._benchmark, tmp_path / "log")
    assert found.status in ("ok", "flagged"), found.reasons
    assert [request.completion_tokens for request in found.requests] == [16] * len(found.requests) != []
    assert found.command[:3] == [image.tool, "run", "--rm"] and image.image in found.command
    assert found.engine_facts["environment"]["image_digests"] == [image.image.rpartition("@")[2]]
    assert found.peak_rss_bytes and found.peak_rss_bytes > 5_000_000
    assert found.native and found.native.tool == "vllm bench latency"
    assert found.native.prefill_tok_per_s.median == pytest.approx(32 / mock_image.LATENCIES[1])
    assert found.native.decode_tok_per_s.median == pytest.approx(15 / 0.090)
    assert containers(image) == []


def test_no_container_outlives_a_measuring_process_that_is_killed(image: Container, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from test_containers import *;"
        "engine = server(Container.model_validate_json(sys.argv[1]), Path(sys.argv[2]));"
        "print(engine.launch(engine.plan(subject('steady')), Path(sys.argv[2]) / 'log').port, flush=True);"
        "time.sleep(60)"
    )
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join(
        map(str, (Path(__file__).parent, tests, tests / "unit", repository() / "scripts"))
    )
    measuring = subprocess.Popen(
        [sys.executable, "-c", code, image.model_dump_json(), tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert measuring.stdout
    port = int(measuring.stdout.readline())
    assert listens(port) and len(containers(image)) == 1
    measuring.kill()
    measuring.communicate()
    deadline = time.monotonic() + 20
    while (containers(image) or listens(port)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert containers(image) == [] and not listens(port)


def test_the_artifact_of_an_image_holds_what_the_tool_and_its_python_say(
    image: Container, tmp_path: Path
) -> None:
    found = container.provide(image, tmp_path / "log")
    facts = found.examine(mock_image.VERSION)
    assert facts["packages"]["vllm"] == mock_image.VERSION and "aiohttp" in facts["packages"]
    assert facts["image_digests"] == [image.image.rpartition("@")[2]]
    assert facts["tool_version"] and facts["tool"] == image.tool
    assert facts["torch"] is None
    with zipfile.ZipFile(io.BytesIO(found.wheel("vllm"))) as wheel:
        assert f"vllm-{mock_image.VERSION}.dist-info/METADATA" in wheel.namelist()
        assert wheel.read("vllm/entrypoints/cli/main.py").decode() == mock_image.MAIN
    with pytest.raises(
        StudyError, match=r"vllm\.version.*\n.*says 0\.9\.2 and this Python holds vLLM 0\.0\+mock"
    ):
        found.examine("0.9.2")


def test_an_image_that_is_not_here_and_cannot_be_pulled_is_one_error(
    image: Container, tmp_path: Path
) -> None:
    absent = image.model_copy(update={"image": f"127.0.0.1:9/no/such@sha256:{'0' * 64}"})
    with pytest.raises(ToolError, match=r"container\.image.*\n.*isn't on this machine and can't be pulled"):
        container.provide(absent, tmp_path / "log")


def test_a_python_that_the_image_has_not_got_is_one_error(image: Container, tmp_path: Path) -> None:
    without = image.model_copy(update={"python": "python9"})
    with pytest.raises(
        ToolError, match=r"container\.python.*\n.*'python9' of the image can't tell what it has installed"
    ):
        container.provide(without, tmp_path / "log").describe()
