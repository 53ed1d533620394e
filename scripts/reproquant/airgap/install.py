"""Install a bundle where there is no network. Needs Python's standard library and pip alone.

What is complete is installed, what isn't is left for the next call. An environment
is marked when it is finished, so that a call that was interrupted is made good by the next.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reproquant.airgap.parts import Carried, Manifest, join
from reproquant.errors import ToolError
from reproquant.files import locked, read_json, store, write_json

COMPLETE = "complete.json"
BEHIND = "target.pth"
PIP_SETTINGS = "pip.conf"


def install(parts: Path, place: Path, repository: Path) -> Iterator[str]:
    """Join the parts that are there below ``place``, install what is complete, and tell each step.

    Raises FormatError for damaged parts, and ToolError if a program fails. Calls at the same
    time wait for each other.
    """
    with locked(place / ".lock"):
        manifest = Manifest.load(parts)
        yield from differences(manifest.contents)
        come = join(manifest, parts, place / "files")
        yield f"{len(come)} of {len(manifest.files)} files are complete"
        yield from _fill_store(manifest, come, place)
        for environment in manifest.contents["environments"]:
            yield from _provide(environment, come, place, repository)
        settings = f"[global]\nno-index = true\nfind-links = {(place / 'files' / 'wheels').resolve()}\n"
        (place / PIP_SETTINGS).write_text(settings, encoding="utf-8")


def differences(contents: Mapping[str, Any]) -> Iterator[str]:
    """Where this Python isn't what the bundle was packed for; raises ToolError for another Python."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running != contents["python"]:
        raise ToolError(
            sys.executable,
            f"it is Python {running}, and the bundle holds wheels for {contents['python']}",
            f"run it with Python {contents['python']}, or pack a bundle for this one",
        )
    for name, wanted in contents["has"].items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield f"warning: {name} isn't here; the bundle was packed for a machine that has it"
            continue
        if wanted not in (None, found, found.partition("+")[0]):
            yield f"warning: {name} is {found} here; the bundle was packed beside {wanted}"


def _fill_store(manifest: Manifest, come: Sequence[Carried], place: Path) -> Iterator[str]:
    """Put downloads where the stages look for them."""
    names = {file.path for file in come}
    for path, where in manifest.contents["store"].items():
        target = store() / where
        if path in names and not target.exists():
            target.parent.parent.mkdir(parents=True, exist_ok=True)
            scratch = target.parent.with_name(f"{target.parent.name}.partial")
            scratch.mkdir(exist_ok=True)
            shutil.copyfile(place / "files" / path, scratch / target.name)
            scratch.replace(target.parent)
            yield f"{target.name} is in the store"


def _provide(
    environment: Mapping[str, Any], come: Sequence[Carried], place: Path, repository: Path
) -> Iterator[str]:
    """Make one environment, if all its wheels have come."""
    folder, wheels = repository / environment["folder"], environment["wheels"]
    digests = {file.path: file.sha256 for file in come}
    missing = len({*wheels, *environment["build_tools"]} - digests.keys())
    wanted = {"wheels": {name: digests.get(name) for name in wheels}, "python": sys.executable}
    mark = folder / COMPLETE
    if mark.exists() and read_json(mark) == wanted:
        yield f"{environment['folder']} is installed"
    elif missing:
        yield f"{environment['folder']} waits for {missing} wheels"
    else:
        _make(environment, [place / "files" / name for name in wheels], place, repository)
        write_json(mark, wanted)
        yield f"{environment['folder']}: {len(wheels)} wheels installed"


def _make(environment: Mapping[str, Any], wheels: Sequence[Path], place: Path, repository: Path) -> None:
    folder = repository / environment["folder"]
    shutil.rmtree(folder, ignore_errors=True)
    has_pip = importlib.util.find_spec("ensurepip") is not None
    venv = [sys.executable, "-m", "venv", *([] if has_pip else ["--without-pip"]), folder]
    _run(venv, "Python's venv module")
    python = folder / "bin" / "python"
    offline = ["--no-index", "--no-deps", "--no-compile", "--find-links", place / "files" / "wheels"]
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *offline]
    if wheels:
        _run([*pip, *wheels], "pip")
    if environment["project"]:
        _run([*pip, "--editable", repository], "pip")
        (folder / ".ready").touch()
    (site_packages,) = folder.glob("lib/python3*/site-packages")
    # On all cores, which pip doesn't. Its exit status is 1: some packages carry files not meant to compile.
    subprocess.run([python, "-m", "compileall", "-qq", "-j", "0", site_packages], stdout=subprocess.DEVNULL)
    if environment["over_target"]:
        folders = [path for path in site.getsitepackages() if Path(path).is_dir()]
        lines = [f"import site; site.addsitedir({path!r})\n" for path in folders]
        (site_packages / BEHIND).write_text("".join(lines), encoding="utf-8")


def _run(command: Sequence[object], what: str) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise ToolError(words[0], f"{what} ended with code {done.returncode}:\n{said}", "mend it, run again")
