"""Which of a lock's packages have to be carried to a target."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.markers import Marker

from reproquant.airgap.target import Packed, Target
from reproquant.errors import StudyError
from reproquant.toolchain.python_env import canonical


@dataclass(frozen=True)
class Requirement:
    """A locked package: ``pin`` is NAME==VERSION, ``hashes`` the sha256 that its files may have."""

    name: str
    pin: str
    hashes: tuple[str, ...]

    @property
    def line(self) -> str:
        """As a requirements file of pip has it."""
        return " ".join([self.pin, *(f"--hash=sha256:{digest}" for digest in self.hashes)])


def carried(lock: str, packed: Packed, target: Target) -> list[Requirement]:
    """The packages of a lock's text that fit the target, it doesn't have, and aren't left out.

    Markers are judged for the target: pip would judge them for the Python that
    it runs in. Raises StudyError for an omission that the lock doesn't have.
    """
    wanted = [one for one in locked(lock, target.markers)]
    names = {one.name for one in wanted}
    if strangers := [name for name in packed.leave_out if canonical(name) not in names]:
        raise StudyError(
            f"{packed.folder}: leave_out",
            f"the lock has no {', '.join(strangers)} for this target",
            "take these names out: an omission that isn't one says something untrue",
        )
    there = {canonical(name) for name in target.has} if packed.over_target else set()
    left = {canonical(name) for name in packed.leave_out}
    return [one for one in wanted if one.name not in there | left]


def locked(lock: str, markers: dict[str, str]) -> list[Requirement]:
    """Every package of a lock's text whose marker holds."""
    found = []
    for entry in re.split(r"^(?=\w)", re.sub(r"^#.*\n", "", lock, flags=re.MULTILINE), flags=re.MULTILINE):
        head = re.match(r"([\w.-]+)==([^\s;\\]+)\s*(?:;([^\\\n]*))?", entry)
        if head is None:
            continue
        name, version, marker = head.groups()
        if marker is None or Marker(marker.strip()).evaluate(markers):
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
            found.append(Requirement(canonical(name), f"{name}=={version}", hashes))
    return found
