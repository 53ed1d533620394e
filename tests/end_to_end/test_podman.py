"""vLLM's container runtime with podman for real; in the image is the mock token server, named so.

Skipped, with the reason, where podman can't run a container.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import podman_image
from mock_engine import benchmark, subject
from reproquant.bench.protocol import measure
from reproquant.engines.runtime import InImage
from reproquant.engines.vllm import VllmServer
from reproquant.errors import StudyError, ToolError
from reproquant.files import repository
from reproquant.study import Container, Vllm
from reproquant.toolchain import container

ULIMITS = 'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]'
"""podman's own are above what a process without CAP_SYS_RESOURCE, as in a container, may set."""

WAYS = {
    "as it is installed": f"[containers]\n{ULIMITS}\n",
    "with cgroupfs": f'[containers]\n{ULIMITS}\n[engine]\ncgroup_manager = "cgroupfs"\n',
    "with runc": f'[containers]\n{ULIMITS}\n[engine]\ncgroup_manager = "cgroupfs"\nruntime = "runc"\n',
    "without cgroups": f'[containers]\ncgroups = "disabled"\n{ULIMITS}\n[engine]\ncgroup_manager = "cgroupfs"\n',
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """The image in a store of the test's own, and podman set up so that it runs here."""
    if shutil.which("podman") is None:
        pytest.skip("there is no podman; do: apt-get install podman")
    folder = tmp_path_factory.mktemp("podman")
    roots = f'graphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
    (folder / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\n{roots}')
    podman_image.write(folder / "image.tar")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        (folder / "containers.conf").write_text(WAYS["with cgroupfs"])
        said = podman("import", "--quiet", folder / "image.tar", podman_image.NAME)
        if said.returncode:
            pytest.skip(f"podman can't import an image here: {said.stderr.strip()}")
        (facts,) = json.loads(podman("image", "inspect", podman_image.NAME).stdout)
        pinned = f"{podman_image.NAME}@{facts['Digest']}"
        _set_up(folder / "containers.conf", pinned)
        yield Container(tool="podman", image=pinned)
        podman("rm", "--all", "--force", "--time", "0")
        podman("rmi", "--all", "--force")


def _set_up(file: Path, image: str) -> None:
    """Find the way in which podman runs a container on this machine, or skip."""
    words = []
    for way, text in WAYS.items():
        file.write_text(text)
        done = podman("run", "--rm", "--network", "host", "--entrypoint", "python3", image, "-c", "")
        if done.returncode == 0:
            return
        words.append(f"{way}: {(done.stderr.strip().splitlines() or ['no words'])[-1]}")
    pytest.skip("podman can't run a container here; " + "; ".join(words))


def podman(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["podman", *map(str, words)], capture_output=True, text=True, check=False)


def server(image: Container, folder: Path, **changes: int) -> VllmServer:
    """The engine on a folder with one file; its vLLM is the mock."""
    checkpoint = folder / "model"
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "model.safetensors").write_bytes(b"12345")
    settings = Vllm(
        version=podman_image.VERSION, dtype="float16", max_model_len=64, environment_variables=("VLLM_X=a b",)
    )
    (folder / "prompt.txt").write_text("".join(map(chr, range(0x4E00, 0x4E00 + 500))))
    workload = benchmark(folder / "prompt.txt", **changes)
    return VllmServer(InImage(container.provide(image, folder / "pull.log")), checkpoint, settings, workload)


def containers() -> list[str]:
    return podman("ps", "--all", "--format", "{{.Names}}").stdout.split()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_in_a_container_is_healthy_sees_its_checkpoint_and_is_gone_after_stop(
    image: Container, tmp_path: Path
) -> None:
    engine = server(image, tmp_path)
    endpoint = engine.launch(engine.plan(subject("steady")), tmp_path / "log")
    (name,) = containers()
    assert name.startswith("reproquant-") and listens(endpoint.port)
    assert len(engine.processes()) >= 1
    engine.stop()
    assert containers() == [] and not listens(endpoint.port) and engine.processes() == []
    said = (tmp_path / "log").read_text()
    assert "MOCK sees ['model.safetensors'] read-only" in said
    assert "MOCK has {'VLLM_X': 'a b', 'HF_HUB_OFFLINE': '1'}" in said


def test_links_of_a_checkpoint_lead_to_their_files_in_a_container_too(
    image: Container, tmp_path: Path
) -> None:
    engine = server(image, tmp_path)
    (elsewhere := tmp_path / "elsewhere.json").write_text("{}")
    (tmp_path / "model/config.json").symlink_to(elsewhere)
    engine.launch(engine.plan(subject("steady")), tmp_path / "log")
    inside = podman("exec", *containers(), "python3", "-c", "print(open('/checkpoint/config.json').read())")
    engine.stop()
    assert inside.stdout == "{}\n"


def test_a_subject_is_measured_through_a_container(image: Container, tmp_path: Path) -> None:
    engine = server(image, tmp_path, output_tokens=16, native_repetitions=2)
    found = measure(engine, subject("steady"), engine._benchmark, tmp_path / "log")
    assert found.status in ("ok", "flagged"), found.reasons
    assert [request.completion_tokens for request in found.requests] == [16] * len(found.requests) != []
    assert found.command[:3] == ["podman", "run", "--rm"] and image.image in found.command
    assert found.engine_facts["environment"]["image_digests"] == [image.image.rpartition("@")[2]]
    assert found.peak_rss_bytes and found.peak_rss_bytes > 5_000_000
    assert found.native and found.native.tool == "vllm bench latency"
    assert found.native.prefill_tok_per_s.median == pytest.approx(32 / podman_image.LATENCIES[1])
    assert found.native.decode_tok_per_s.median == pytest.approx(15 / 0.090)
    assert containers() == []


def test_no_container_outlives_a_measuring_process_that_is_killed(image: Container, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from test_podman import *;"
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
    assert listens(port) and len(containers()) == 1
    measuring.kill()
    measuring.communicate()
    deadline = time.monotonic() + 20
    while (containers() or listens(port)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert containers() == [] and not listens(port)


def test_the_artifact_of_an_image_holds_what_the_tool_and_its_python_say(
    image: Container, tmp_path: Path
) -> None:
    found = container.provide(image, tmp_path / "log")
    facts = found.examine(podman_image.VERSION)
    assert facts["packages"]["vllm"] == podman_image.VERSION and "aiohttp" in facts["packages"]
    assert facts["image_digests"] == [image.image.rpartition("@")[2]]
    assert f"podman version {facts['tool_version']}" == podman("--version").stdout.strip()
    assert facts["torch"] is None
    with pytest.raises(
        StudyError, match=r"vllm\.version.*\n.*says 0\.9\.2 and this Python holds vLLM 0\.0\+mock"
    ):
        found.examine("0.9.2")


def test_an_image_that_is_not_here_and_cannot_be_pulled_is_one_error(
    image: Container, tmp_path: Path
) -> None:
    absent = image.model_copy(update={"image": f"localhost:9/no/such@sha256:{'0' * 64}"})
    with pytest.raises(ToolError, match=r"container\.image.*\n.*isn't on this machine and can't be pulled"):
        container.provide(absent, tmp_path / "log")


def test_a_python_that_the_image_has_not_got_is_one_error(image: Container, tmp_path: Path) -> None:
    without = image.model_copy(update={"python": "python9"})
    with pytest.raises(
        ToolError, match=r"container\.python.*\n.*'python9' of the image can't list its packages"
    ):
        container.provide(without, tmp_path / "log").describe()
