"""Pack what a target lacks: wheels, the study's downloads, and a manifest of what goes where."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproquant import process
from reproquant.airgap.parts import Carried, Manifest, cut
from reproquant.airgap.requirements import Requirement, carried, locked
from reproquant.airgap.target import Packed, Target
from reproquant.errors import DownloadError, StudyError, ToolError
from reproquant.files import repository, sha256_file, write_text
from reproquant.study import SdistSource, Study, lock_path
from reproquant.toolchain.llama_cpp import download_sdist
from reproquant.toolchain.python_env import canonical, failure

MB = 10**6
PURE = "-none-any.whl"


def pack(target: Target, folder: Path, log: Path) -> Manifest:
    """Download what ``target`` lacks into ``folder/files`` and cut it into ``folder/parts``.

    The first environment comes first, then the study's downloads, then the others, so that work
    can begin there before everything has come. What an earlier, interrupted call has downloaded is
    kept. Raises DownloadError for a package that has no wheel for the target and can't be made into one
    that runs everywhere, and StudyError for a study whose llama.cpp can't be carried.
    """
    packer = _Packer(target, folder / "files", log)
    environments = [packer.environment(packed) for packed in target.environments]
    first, *others = [[*one["build_tools"], *one["wheels"]] for one in environments]
    downloads = packer.downloads(Study.of_files([repository() / target.study]))
    built = [packer.wheels(locked(_lock(name), target.markers)) for name in target.wheels_of]
    order = dict.fromkeys([*first, *downloads, *(path for group in (*others, *built) for path in group)])
    contents = {
        "target": target.name,
        "python": target.python,
        "has": target.has,
        "environments": environments,
        "store": downloads,
    }
    return cut(
        packer.files,
        [packer.described(path) for path in order],
        target.part_mb * MB,
        folder / "parts",
        contents,
    )


@dataclass(frozen=True)
class _Packer:
    """Where files for a target are gathered; paths that it gives are relative to ``files``."""

    target: Target
    files: Path
    log: Path

    def environment(self, packed: Packed) -> dict[str, Any]:
        """What the manifest says of an environment, its wheels downloaded."""
        wanted = carried(_lock(packed.lock), packed, self.target) if packed.lock else []
        return {
            "folder": packed.folder,
            "wheels": self.wheels(wanted),
            "build_tools": self._build_tools() if packed.project else [],
            "over_target": packed.over_target,
            "project": packed.project,
            "left_out": packed.leave_out,
        }

    def described(self, path: str) -> Carried:
        """A file as the manifest lists it."""
        return Carried(path, sha256_file(self.files / path), (self.files / path).stat().st_size)

    def downloads(self, study: Study) -> dict[str, str]:
        """The study's downloads that are no wheels, and where each belongs in the target's store."""
        spec = study.llama_cpp.spec
        if not isinstance(spec, SdistSource):
            where = f"{study.name}: llama_cpp.source"
            raise StudyError(where, "a git clone isn't carried", "use an sdist that vendors llama.cpp")
        sdist = download_sdist(spec, self.log)
        target = self.files / "downloads" / sdist.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(sdist, target)
        return {self._path(target): f"downloads/{spec.sha256}/{sdist.name}"}

    def wheels(self, wanted: Iterable[Requirement]) -> list[str]:
        """A wheel for each requirement, small ones first; pip is asked for those that don't lie here yet.

        Raises DownloadError for one that pip left no wheel of: a bundle without it would look complete.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        requirements = list(wanted)
        if missing := [one for one in requirements if self._wheel(one.pin) is None]:
            self._download(missing)
        found = [self._there(one.pin) for one in requirements]
        return [self._path(path) for path in sorted(found, key=lambda path: (path.stat().st_size, path.name))]

    @property
    def _folder(self) -> Path:
        return self.files / "wheels"

    def _path(self, file: Path) -> str:
        return file.relative_to(self.files).as_posix()

    def _there(self, pin: str) -> Path:
        wheel = self._wheel(pin)
        if wheel is None:
            raise DownloadError(pin, f"pip left no wheel of it in {self._folder}", f"look in {self.log}")
        return wheel

    def _wheel(self, pin: str) -> Path | None:
        """The wheel of NAME==VERSION in the folder; pip checked it when it put it there."""
        name, _, version = pin.partition("==")
        stem = _plain(f"{canonical(name).replace('-', '_')}-{version}-")
        return next((path for path in self._folder.glob("*.whl") if _plain(path.name).startswith(stem)), None)

    def _download(self, wanted: Sequence[Requirement]) -> None:
        """Have pip download wheels for the target; a package that has none is built here."""
        left = list(wanted)
        platforms = [word for tag in self.target.platforms for word in ("--platform", tag)]
        fitting = ["--only-binary", ":all:", "--python-version", self.target.python, *platforms]
        while left:
            try:
                return self._pip("download", [*fitting, "--dest", self._folder], left)
            except ToolError as error:
                found = re.search(r"No matching distribution found for ([\w.-]+)==", error.reason)
                without = next((one for one in left if found and one.name == canonical(found[1])), None)
                if without is None:
                    where, remedy = f"wheels for {self.target.name}", "check the network and pip's index"
                    raise failure(error.reason, where) or DownloadError(where, error.reason, remedy) from None
                self._build(without)
                left.remove(without)

    def _build(self, one: Requirement) -> None:
        """Make a wheel out of a source distribution; refuse one that holds compiled code of this machine."""
        self._pip("wheel", ["--no-binary", one.name, "--wheel-dir", self._folder], [one])
        wheel = self._wheel(one.pin)
        if wheel and not wheel.name.endswith(PURE):
            wheel.unlink()
            reason = "it has no wheel for the target, and code to compile"
            raise DownloadError(one.pin, reason, "pin a release that has a wheel")

    def _pip(self, verb: str, options: Sequence[object], wanted: Iterable[Requirement]) -> None:
        listed = self._folder / "requirements.txt"
        write_text(listed, "".join(f"{one.line}\n" for one in wanted))
        words = [sys.executable, "-m", "pip", verb, "--no-deps", "--require-hashes", "--progress-bar", "off"]
        process.run([*words, *options, "--requirement", listed], self.log)

    def _build_tools(self) -> list[str]:
        """What pip needs to install this project itself, as pyproject.toml pins it."""
        project = tomllib.loads((repository() / "pyproject.toml").read_text(encoding="utf-8"))
        pins = project["build-system"]["requires"]
        for pin in pins:
            if self._wheel(pin) is None:
                words = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
                process.run([*words, "--dest", self._folder, pin], self.log)
        return [self._path(self._there(pin)) for pin in pins]


def _lock(name: str) -> str:
    return lock_path(name).read_text(encoding="utf-8")


def _plain(name: str) -> str:
    return name.lower().replace(".", "_")
