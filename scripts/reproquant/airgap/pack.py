"""Pack what a target lacks: wheels, the study's downloads, and a manifest of what goes where."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from reproquant import process
from reproquant.airgap.parts import Carried, Manifest, cut
from reproquant.airgap.requirements import Requirement, carried, locked
from reproquant.airgap.target import Target
from reproquant.errors import DownloadError, StudyError, ToolError
from reproquant.files import repository, sha256_file, write_text
from reproquant.study import SdistSource, Study, lock_path
from reproquant.toolchain.llama_cpp import download_sdist
from reproquant.toolchain.python_env import canonical, failure

MB = 10**6
WHEELS = "wheels"
PURE = "-none-any.whl"


def pack(target: Target, folder: Path, log: Path) -> Manifest:
    """Download what ``target`` lacks into ``folder/files`` and cut it into ``folder/parts``.

    What an earlier, interrupted call has downloaded is kept. Raises DownloadError for a package that has
    no wheel for the target and can't be made into one that runs everywhere.
    """
    files = folder / "files"
    environments, order = [], []
    for packed in target.environments:
        lock = lock_path(packed.lock).read_text(encoding="utf-8") if packed.lock else ""
        wanted = carried(lock, packed, target)
        wheels = [wheel.relative_to(files).as_posix() for wheel in _wheels(wanted, target, files, log)]
        tools = _build_tools(files, log) if packed.project else []
        environments.append(
            {
                "folder": packed.folder,
                "wheels": wheels,
                "build_tools": tools,
                "over_target": packed.over_target,
                "project": packed.project,
                "left_out": packed.leave_out,
            }
        )
        order += [*tools, *wheels]
    downloads = _downloads(Study.of_files([repository() / target.study]), files, log)
    first = len({*environments[0]["wheels"], *environments[0]["build_tools"]})
    built = [
        wheel.relative_to(files).as_posix()
        for name in target.wheels_of
        for wheel in _wheels(
            locked(lock_path(name).read_text(encoding="utf-8"), target.markers), target, files, log
        )
    ]
    paths = list(dict.fromkeys([*order[:first], *downloads, *order[first:], *built]))
    contents = {
        "target": target.name,
        "python": target.python,
        "has": target.has,
        "environments": environments,
        "store": downloads,
    }
    return cut(files, [_described(files, path) for path in paths], target.part_mb * MB, folder / "parts", contents)


def _described(files: Path, path: str) -> Carried:
    return Carried(path, sha256_file(files / path), (files / path).stat().st_size)


def _wheels(wanted: Iterable[Requirement], target: Target, files: Path, log: Path) -> list[Path]:
    """A wheel for each requirement, the small ones first; those that lie there already aren't asked for."""
    folder = files / WHEELS
    folder.mkdir(parents=True, exist_ok=True)
    requirements = list(wanted)
    missing = [one for one in requirements if _wheel(one, folder) is None]
    if missing:
        _download(missing, target, folder, log)
    found = [_wheel(one, folder) for one in requirements]
    return sorted((path for path in found if path), key=lambda path: (path.stat().st_size, path.name))


def _wheel(one: Requirement, folder: Path) -> Path | None:
    """The requirement's wheel in the folder, which pip checked when it put it there."""
    name, _, version = one.pin.partition("==")
    stem = f"{canonical(name).replace('-', '_')}-{version}-"
    return next((path for path in folder.glob("*.whl") if _plain(path.name).startswith(_plain(stem))), None)


def _plain(name: str) -> str:
    return name.lower().replace(".", "_")


def _download(wanted: Sequence[Requirement], target: Target, folder: Path, log: Path) -> None:
    """Have pip download the wheels; a package that has none is built into one that runs everywhere."""
    left = list(wanted)
    platforms = [word for tag in target.platforms for word in ("--platform", tag)]
    fitting = ["--only-binary", ":all:", "--python-version", target.python, "--implementation", "cp", *platforms]
    while left:
        try:
            _pip("download", [*fitting, "--dest", folder], left, folder, log)
        except ToolError as error:
            found = re.search(r"No matching distribution found for ([\w.-]+)==", error.reason)
            without = next((one for one in left if found and one.name == canonical(found[1])), None)
            if without is None:
                where = f"wheels for {target.name}"
                remedy = "check the network and pip's index"
                raise failure(error.reason, where) or DownloadError(where, error.reason, remedy) from None
            _build(without, folder, log)
            left.remove(without)
        else:
            return


def _build(one: Requirement, folder: Path, log: Path) -> None:
    """Make a wheel out of a source distribution; refuse one that holds compiled code of this machine."""
    before = set(folder.glob("*.whl"))
    _pip("wheel", ["--no-binary", one.name, "--wheel-dir", folder], [one], folder, log)
    for wheel in set(folder.glob("*.whl")) - before:
        if not wheel.name.endswith(PURE):
            wheel.unlink()
            raise DownloadError(
                one.pin, "it has no wheel for the target, and holds code to compile", "pin a release that has one"
            )


def _pip(
    verb: str, options: Sequence[object], wanted: Iterable[Requirement], folder: Path, log: Path
) -> None:
    listed = folder / "requirements.txt"
    write_text(listed, "".join(f"{one.line}\n" for one in wanted))
    words = [sys.executable, "-m", "pip", verb, "--no-deps", "--require-hashes", "--progress-bar", "off"]
    process.run([*words, *options, "--requirement", listed], log)


def _build_tools(files: Path, log: Path) -> list[str]:
    """What pip needs to install this project itself, as pyproject.toml pins it."""
    project = tomllib.loads((repository() / "pyproject.toml").read_text(encoding="utf-8"))
    folder = files / WHEELS
    for pin in project["build-system"]["requires"]:
        one = Requirement(canonical(pin.partition("==")[0]), pin, ())
        if _wheel(one, folder) is None:
            words = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
            process.run([*words, "--dest", folder, pin], log)
    found = [_wheel(Requirement("", pin, ()), folder) for pin in project["build-system"]["requires"]]
    return [path.relative_to(files).as_posix() for path in found if path]


def _downloads(study: Study, files: Path, log: Path) -> dict[str, str]:
    """The study's downloads that are no wheels: path in the bundle, and place in the target's store."""
    spec = study.llama_cpp.spec
    if not isinstance(spec, SdistSource):
        raise StudyError(
            f"{study.name}: llama_cpp.source", "a git clone can't be carried as a file", "use an sdist that vendors it"
        )
    sdist = download_sdist(spec, log)
    target = files / "downloads" / sdist.name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sdist, target)
    return {target.relative_to(files).as_posix(): f"downloads/{spec.sha256}/{sdist.name}"}
