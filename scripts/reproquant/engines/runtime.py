"""Where vLLM's Python runs: on this machine itself, or in a container."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reproquant.machine import host
from reproquant.machine.gpu import shown, visible_devices
from reproquant.toolchain.container import Image, Mount
from reproquant.toolchain.interpreter import Interpreter

HIDDEN = ""
"""``CUDA_VISIBLE_DEVICES`` that shows no GPU."""


@dataclass(frozen=True)
class Shared:
    """A folder of this machine that the Python reads or writes; a container shows it at ``inside``."""

    path: Path
    inside: str
    writable: bool = False


@dataclass(frozen=True)
class Invocation:
    """A command line with its variables, and the command that ends what is left outside of its group."""

    command: tuple[str, ...]
    environment_variables: dict[str, str]
    ending: tuple[str, ...] = ()


class Runtime(ABC):
    """Runs one program of vLLM at a time."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The environment that holds vLLM, as JSON data."""

    @abstractmethod
    def seen(self, folder: Shared) -> str:
        """The path at which the Python finds a folder."""

    @abstractmethod
    def invocation(
        self, words: Sequence[str], gpus: int, variables: Mapping[str, str], folders: Sequence[Shared]
    ) -> Invocation:
        """How the Python is run with these words, on so many GPUs, with these folders to see."""

    @abstractmethod
    def processes(self, group: int) -> list[int]:
        """The ids of what runs by the command whose process group is given."""


@dataclass(frozen=True)
class OnThisMachine(Runtime):
    """A Python of this machine, from a lock or the user's own."""

    environment: Interpreter

    def describe(self) -> dict[str, Any]:
        return self.environment.describe()

    def seen(self, folder: Shared) -> str:
        return str(folder.path)

    def invocation(
        self, words: Sequence[str], gpus: int, variables: Mapping[str, str], folders: Sequence[Shared]
    ) -> Invocation:
        own = {**shown(gpus), **variables}
        return Invocation((str(self.environment.python), *words), own)

    def processes(self, group: int) -> list[int]:
        return host.group_members(group)


@dataclass(frozen=True)
class InImage(Runtime):
    """The Python of a container image; every container of it has the same name, one after the other."""

    image: Image
    name: str = field(default_factory=lambda: f"reproquant-{secrets.token_hex(6)}")
    _roots: dict[int, int] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        return self.image.describe()

    def seen(self, folder: Shared) -> str:
        return folder.inside

    def invocation(
        self, words: Sequence[str], gpus: int, variables: Mapping[str, str], folders: Sequence[Shared]
    ) -> Invocation:
        """The variables are set in the container alone; one without GPUs is told so, whatever it is shown."""
        cards = visible_devices(gpus).split(",") if gpus else []
        own = dict(variables) if gpus else {"CUDA_VISIBLE_DEVICES": HIDDEN, **variables}
        mounts = [mount for folder in folders for mount in _mounts(folder)]
        command = self.image.command(self.name, words, cards, own, mounts)
        return Invocation(command, own, self.image.ending(self.name))

    def processes(self, group: int) -> list[int]:
        if group not in self._roots and (root := self.image.root_process(self.name)):
            self._roots[group] = root
        return host.family(self._roots[group]) if group in self._roots else []


def _mounts(folder: Shared) -> Iterator[Mount]:
    """The folder itself, or each of its files where some are links: in a container these lead nowhere."""
    files = [path for path in sorted(folder.path.rglob("*")) if path.is_file()]
    if not any(path.is_symlink() for path in files):
        yield Mount(folder.path.resolve(), folder.inside, folder.writable)
        return
    for path in files:
        inside = f"{folder.inside}/{path.relative_to(folder.path).as_posix()}"
        yield Mount(path.resolve(), inside, folder.writable)
