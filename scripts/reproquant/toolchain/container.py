"""A container image as an environment: pinned by digest, run by docker or podman."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from reproquant import external, freeze, pack, process
from reproquant.errors import ToolError
from reproquant.files import digest_of
from reproquant.study import Container

KEY = "environments.vllm.container"
CORES = "CORES"
ENDING = {
    "docker": ("rm", "--force", "--volumes"),
    "podman": ("rm", "--force", "--volumes", "--ignore", "--time", "0"),
}
"""Ends a container and removes it, or says that there is none, both with success."""

VERSION = {"docker": "{{.ServerVersion}}", "podman": "{{.Version.Version}}"}
START = {
    "docker": "start its daemon (systemctl start docker), or join the group docker",
    "podman": "see what 'podman info' says",
}
PATIENCE_S = 120


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine and the path at which a container shows it."""

    source: Path
    target: str
    writable: bool = False

    @property
    def option(self) -> str:
        """The value of ``--mount``."""
        return f"type=bind,source={self.source},target={self.target}" + ("" if self.writable else ",readonly")


@dataclass(frozen=True)
class Image:
    """An image that is on this machine."""

    settings: Container

    def command(
        self,
        name: str,
        words: Sequence[str],
        gpus: Sequence[str],
        variables: Mapping[str, str],
        mounts: Sequence[Mount],
    ) -> tuple[str, ...]:
        """The command line that runs the image's Python with ``words`` in a container called ``name``.

        The container shares the machine's network, so a loopback port in it is
        one of this machine and no proxy is measured; it has shared memory of its
        own, sees only ``gpus``, and leaves nothing when it ends. CORES stands
        where the cores go that it may use.
        """
        settings = self.settings
        return (
            *(settings.tool, "run", "--rm", "--name", name, "--pull", "never", "--network", "host"),
            *("--shm-size", f"{settings.shm_gib}g", "--cpuset-cpus", CORES),
            *("--security-opt", "label=disable"),
            *_devices(settings.tool, gpus),
            *(word for pair in variables.items() for word in ("--env", "=".join(pair))),
            *(word for mount in mounts for word in ("--mount", mount.option)),
            *("--entrypoint", settings.python, settings.image, *words),
        )

    def ending(self, name: str) -> tuple[str, ...]:
        """The command that ends a container, whatever has become of the one that started it."""
        return (self.settings.tool, *ENDING[self.settings.tool], name)

    def root_process(self, name: str) -> int | None:
        """The id that this machine gives to a running container's first process; None if it tells none."""
        done = _run(self.settings.tool, "container", "inspect", "--format", "{{.State.Pid}}", name)
        return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdigit() else None

    def describe(self) -> dict[str, Any]:
        """The tool, the image as the tool knows it, and what its Python has installed."""
        tool, frozen = self.settings.tool, self._frozen()
        return {
            "name": "container-vllm",
            "tool": tool,
            "tool_version": _asked_for_version(tool).stdout.decode().strip(),
            "image": self.settings.image,
            **_inspected(self.settings),
            "frozen_sha256": digest_of(frozen),
            **frozen,
        }

    def examine(self, vllm: str) -> dict[str, Any]:
        """``describe``, and what its torch was compiled for.

        Raises StudyError if the image holds another vLLM than ``vllm``, the study's.
        """
        found = self.describe()
        external.require("vllm", KEY, vllm, found)
        return {**found, "torch": self._frozen("torch") if "torch" in found["packages"] else None}

    def wheel(self, package: str) -> bytes:
        """The Python files and the metadata of an installed package, as a zip that is laid out as a wheel."""
        return self._asked(pack, package)

    def _frozen(self, *words: str) -> dict[str, Any]:
        """What ``freeze`` prints."""
        return dict(json.loads(self._asked(freeze, *words).splitlines()[-1]))

    def _asked(self, program: ModuleType, *words: str) -> bytes:
        """What the image's Python prints when it runs a program of this project, given to it as text."""
        assert program.__file__
        inside = (self.settings.tool, "run", "--rm", "--interactive", "--pull", "never", "--network", "none")
        python = ("--entrypoint", self.settings.python, self.settings.image, "-I", "-", *words)
        done = _run(*inside, *python, given=Path(program.__file__).read_bytes())
        if done.returncode:
            raise ToolError(
                f"{KEY}.python",
                f"'{self.settings.python}' of the image can't tell what it has installed: {_last(done)}",
                "give the name or path of the image's Python, 3.9 or newer",
            )
        return done.stdout


def provide(settings: Container, log: Path) -> Image:
    """The study's image, pulled first if this machine hasn't got it.

    Raises ToolError if there is no such tool, its daemon doesn't answer, or the
    image can't be pulled.
    """
    if problem := unready(settings.tool):
        raise problem
    if not present(settings):
        try:
            process.run([settings.tool, "pull", settings.image], log)
        except ToolError as error:
            raise ToolError(
                f"{KEY}.image",
                f"{settings.image} isn't on this machine and can't be pulled: {process.tail(log, 1)}",
                f"correct the name or the digest, or run '{settings.tool} pull {settings.image}' where its "
                "registry can be reached",
            ) from error
    _inspected(settings)
    return Image(settings)


def unready(tool: str) -> ToolError | None:
    """Why a tool can't run containers here; None if it can."""
    if shutil.which(tool) is None:
        return ToolError(
            f"{KEY}.tool", f"there is no {tool} on this machine", "install it, or name the other"
        )
    done = _asked_for_version(tool)
    if done.returncode:
        return ToolError(f"{KEY}.tool", f"{tool} doesn't answer: {_last(done)}", START[tool])
    return None


def present(settings: Container) -> bool:
    """Whether the image is on this machine."""
    return _run(settings.tool, "image", "inspect", settings.image).returncode == 0


def _inspected(settings: Container) -> dict[str, Any]:
    """The image's id and digests as the tool gives them; raises ToolError if the pinned one isn't there."""
    done = _run(settings.tool, "image", "inspect", settings.image)
    facts = json.loads(done.stdout)[0] if done.returncode == 0 else {"Id": None, "RepoDigests": []}
    digests = sorted(digest.rpartition("@")[2] for digest in facts["RepoDigests"])
    wanted = settings.image.rpartition("@")[2]
    if wanted not in digests:
        raise ToolError(
            f"{KEY}.image",
            f"{settings.tool} gives for {settings.image} {', '.join(digests) or 'no digest'}",
            f"{settings.tool} pull {settings.image}",
        )
    return {"image_id": str(facts["Id"]).removeprefix("sha256:"), "image_digests": digests}


def _devices(tool: str, gpus: Sequence[str]) -> tuple[str, ...]:
    """The options that show a container some GPUs: NVIDIA's runtime for docker, CDI devices for podman."""
    if not gpus:
        return ()
    if tool == "docker":
        return ("--gpus", f'"device={",".join(gpus)}"')
    return tuple(word for gpu in gpus for word in ("--device", f"nvidia.com/gpu={gpu}"))


def _asked_for_version(tool: str) -> subprocess.CompletedProcess[bytes]:
    """The version of what runs the containers, which is docker's daemon and podman itself."""
    return _run(tool, "info", "--format", VERSION[tool])


def _run(*command: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """What a tool answers; one that doesn't in time is taken to have failed."""
    try:
        return subprocess.run(command, input=given, capture_output=True, check=False, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, b"", f"no answer in {PATIENCE_S} s".encode())


def _last(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace").splitlines()
    return lines[-1] if lines else f"it ended with code {done.returncode}"
