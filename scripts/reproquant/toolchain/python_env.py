"""Python environments from hashed locks, built once into the store.

An environment lies at ``store()/environments/NAME-<lock sha256, 12 digits>-pyX.Y``:
another lock or another Python is another folder, and old ones stay usable. A
virtual environment holds its own absolute path, so it is built where it stays,
under a file lock; what was left half-built is thrown away by the next try,
because the file that makes it count is written last.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproquant import process
from reproquant.errors import DownloadError, ReproquantError, StudyError, ToolError
from reproquant.files import digest_of, locked, sha256_file, store, write_json, write_text
from reproquant.study import lock_path
from reproquant.toolchain.interpreter import Interpreter

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
COMPLETE = "complete.json"
PIP_INSTALL = ("install", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-input")
FAILURES = (
    (
        r"No space left on device",
        ToolError,
        "the disk that holds the store or the temporary files is full",
        "free some space, or set REPROQUANT_STORE and TMPDIR to a larger disk",
    ),
    (
        r"DO NOT MATCH THE HASHES.*?^ {4}(\S+)",
        DownloadError,
        "the file that came doesn't have the sha256 that the lock names, so it was not installed",
        "look for a proxy or a local index that changes files; 'pip cache purge' drops a damaged copy",
    ),
    (
        r"(?:NewConnectionError|[Nn]ame resolution|Timeout|timed out|ProxyError|SSLError"
        r"|Connection (?:refused|reset|broken|aborted))(?:.*No matching distribution found for (\S+))?",
        DownloadError,
        "the package index could not be reached",
        "check the network, the proxy (https_proxy) and pip's own index settings",
    ),
    (
        r"No matching distribution found for (\S+)",
        DownloadError,
        f"no index has a file of it that fits Python {sys.version_info.major}.{sys.version_info.minor} here",
        "make .venv again with Python 3.11 on Linux x86_64, which every lock fits",
    ),
)
"""What pip says, and what it means: pattern (its group names the package), error, reason, remedy."""


@dataclass(frozen=True)
class PythonEnv(Interpreter):
    """A finished environment: its name in envs/, its folder, and the sha256 of its lock."""

    name: str
    root: Path
    lock_sha256: str

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where the packages lie."""
        return self.root / "lib" / f"python{python_minor()}" / "site-packages"

    def describe(self) -> dict[str, Any]:
        """What is installed, as JSON data.

        ``installed_sha256`` is a digest over the sha256 of every file that the
        packages' RECORD lists name. Left out is what depends on the folder or
        the moment: the command line wrappers and the compiled bytecode.
        """
        found = list(importlib.metadata.distributions(path=[str(self.site_packages)]))
        return {
            "name": self.name,
            "python": self._python_version(),
            "lock_sha256": self.lock_sha256,
            "packages": {canonical(package.name): package.version for package in found},
            "installed_sha256": digest_of(sorted(line for package in found for line in _recorded(package))),
        }

    def _python_version(self) -> str:
        ask = [str(self.python), "-c", "import platform; print(platform.python_version())"]
        return subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()


def ensure(name: str, log: Path) -> PythonEnv:
    """The environment of ``envs/NAME.lock``, built first if the store has none.

    pip may take only the exact versions whose sha256 the lock names, no source
    distribution and no dependency that isn't locked. Raises StudyError if there
    is no such lock, DownloadError if a file can't be had for this Python or
    isn't the locked one, and ToolError for the rest (the disk is full, no pip).
    """
    lock = lock_path(name)
    if not lock.is_file():
        raise StudyError(
            lock,
            f"there is no lock for the environment '{name}'",
            "correct the name under 'environments', or write the .in file and run 'make lock'",
        )
    digest = sha256_file(lock)
    folder = store() / "environments" / f"{name}-{digest[:12]}-py{python_minor()}"
    environment = PythonEnv(name, folder, digest)
    with locked(folder.with_name(f".{folder.name}.lock")):
        if not ((folder / COMPLETE).is_file() and environment.python.exists()):
            _build(environment, lock.read_text(encoding="utf-8"), log)
    return environment


def python_minor() -> str:
    """The running Python's version as ``3.11``; environments are made with the same."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def canonical(package: str) -> str:
    """A package's name as PEP 503 normalizes it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def requirements(lock: str) -> tuple[str, str]:
    """A lock's text in two: what PyPI has, and PyTorch's own CPU builds (version ``+cpu``)."""
    bare = re.sub(r"^#.*\n", "", lock, flags=re.MULTILINE)
    entries = re.split(r"^(?=\S)", bare, flags=re.MULTILINE)
    pytorch = [entry for entry in entries if re.match(r"\S+\+cpu\s", entry)]
    return "".join(entry for entry in entries if entry not in pytorch), "".join(pytorch)


def _build(environment: PythonEnv, lock: str, log: Path) -> None:
    """Fill the environment's folder, or leave none."""
    root = environment.root
    shutil.rmtree(root, ignore_errors=True)
    try:
        root.mkdir(parents=True)
        venv = [sys.executable, "-m", "venv", "--without-pip", root]
        process.run(venv, log, remedy="install Python's own venv module (Debian: python3-venv)")
        from_pypi, from_pytorch = requirements(lock)
        if from_pytorch:
            _install_torch(environment, from_pytorch, log)
        _install(environment, from_pypi, log)
        for name, version in re.findall(r"^# metadata only: (\S+)==(\S+)$", lock, flags=re.MULTILINE):
            _write_metadata(environment.site_packages, name, version)
        write_json(root / COMPLETE, {"name": environment.name, "lock_sha256": environment.lock_sha256})
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise


def _install_torch(environment: PythonEnv, wanted: str, log: Path) -> None:
    """Install PyTorch's CPU build from what pip is set up with, else from PyTorch's own index.

    That index is asked for nothing else and only when it must be: where it
    can't be reached, pip would wait for it once for every package.
    """
    try:
        _install(environment, wanted, log)
    except DownloadError:
        _install(environment, wanted, log, "--index-url", TORCH_CPU_INDEX)


def _install(environment: PythonEnv, wanted: str, log: Path, *options: str) -> None:
    """Have pip install the locked ``wanted``; a known failure is told in words."""
    file = environment.root / "requirements.txt"
    write_text(file, wanted)
    before = log.stat().st_size
    try:
        process.run([environment.python, _pip(), *PIP_INSTALL, *options, "--requirement", file], log)
    except ToolError as error:
        said = log.read_bytes()[before:].decode(errors="replace")
        raise failure(said, f"environment {environment.name}") or error from None
    file.unlink()


def _pip() -> Path:
    """The running Python's own pip as a program that any other Python can run.

    ``pip --python`` runs the same file, but as a child of its own that would
    go on writing after this program was killed.
    """
    pip = importlib.util.find_spec("pip")
    if pip is None or pip.origin is None:
        raise ToolError(sys.executable, "it has no pip to install with", "run 'python -m ensurepip' with it")
    return Path(pip.origin).with_name("__pip-runner__.py")


def failure(said: str, where: str) -> ReproquantError | None:
    """The error that pip's output ``said`` tells of, or None if it is not a known one."""
    for pattern, kind, reason, remedy in FAILURES:
        if found := re.search(pattern, said, flags=re.DOTALL | re.MULTILINE):
            package = next(iter(found.groups()), None)
            return kind(f"{where}: {package}" if package else where, reason, remedy)
    return None


def _write_metadata(site_packages: Path, name: str, version: str) -> None:
    """Declare a distribution that has a version and no files."""
    folder = site_packages / f"{canonical(name).replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "INSTALLER").write_text("reproquant\n")
    files = ("METADATA", "INSTALLER", "RECORD")
    (folder / "RECORD").write_text("".join(f"{folder.name}/{file},,\n" for file in files))


def _recorded(package: importlib.metadata.Distribution) -> list[str]:
    """``path sha256`` for each file of a package that RECORD has a digest of and that lies beside it."""
    inside = [file for file in package.files or () if file.hash and ".." not in file.parts]
    return [f"{file} {file.hash.value}" for file in inside if file.hash]
