"""The wheels of a lock: fetched, and their libraries read for machine code without being installed."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reproquant import process
from reproquant.errors import DownloadError, FormatError, StudyError, ToolError
from reproquant.files import sha256_text, store
from reproquant.toolchain import fatbin
from reproquant.toolchain.machine_code import describe
from reproquant.toolchain.python_env import canonical, failure, python_minor


def fetch(lock: Path, package: str, log: Path) -> Path:
    """The wheel of ``package`` that ``lock`` pins, as the user's pip finds it; kept in the store.

    Raises StudyError if the lock has no such package, and DownloadError if the
    wheel can't be had or isn't the locked one.
    """
    entries = re.split(r"^(?=\S)", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    pinned = [entry for entry in entries if entry.startswith(f"{canonical(package)}==")]
    if not pinned:
        raise StudyError(lock, f"it has no package '{package}'", "name one that it has")
    chosen = f"{pinned[0].split()[0]}-{sha256_text(pinned[0])[:12]}-py{python_minor()}"
    folder = store() / "downloads" / "wheels" / chosen
    folder.mkdir(parents=True, exist_ok=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(pinned[0], encoding="utf-8")
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--progress-bar", "off"]
    pip = [sys.executable, "-m", "pip", "download", *options, "--requirement", requirements, "--dest", folder]
    try:
        process.run(pip, log)
    except ToolError as error:
        remedy = "check the network and pip's index"
        raise failure(error.reason, package) or DownloadError(package, error.reason, remedy) from None
    (wheel,) = folder.glob("*.whl")
    return wheel


def prove_wheel(wheel: Path, architecture: int, kernels: Sequence[str]) -> list[dict[str, Any]]:
    """What each library of a wheel with code for ``architecture`` holds, as JSON data.

    Raises FormatError if no library has any, or if none has a kernel for one of
    ``kernels``, which are parts of names.
    """
    found, others = [], []
    for library in _libraries(wheel):
        held = {image.architecture for image in fatbin.images(library) if image.kind == "cubin"}
        if architecture in held:
            found.append(describe(library, [architecture], kernels))
        elif held:
            others.append(f"{library.name} has {', '.join(f'sm_{number}' for number in sorted(held))}")
    named = {part for facts in found for part in facts["machine_code"][f"sm_{architecture}"]["named"]}
    missing = [part for part in kernels if part not in named]
    if missing or not found:
        lacks = f"no kernel named {' or '.join(missing)}" if found else "nothing"
        reason = f"it has {lacks} for sm_{architecture}"
        raise FormatError(wheel.name, "; ".join([reason, *others]), "pin a release that has it")
    return found


def _libraries(wheel: Path) -> Iterator[Path]:
    """The shared libraries of a wheel, unpacked one at a time."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if not re.search(r"\.so(\.\d+)*$", member):
                continue
            with tempfile.TemporaryDirectory(dir=store()) as folder:
                library = Path(folder, Path(member).name)
                with archive.open(member) as packed, library.open("wb") as file:
                    shutil.copyfileobj(packed, file, 1 << 22)
                yield library
