"""An environment in the store, compared with what its packages' own RECORD lists say of it."""

from __future__ import annotations

import csv
import os
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproquant.files import digest_of, store


@dataclass(frozen=True)
class Installed:
    """One environment: where it lies, and the files that its packages list.

    ``digests`` gives hex sha256 by absolute path; ``installed_sha256`` is
    computed from the lists as ``PythonEnv.describe`` does, so lists that were
    changed give another one; ``unlisted`` are files that no package brought.
    """

    root: Path
    digests: dict[Path, str]
    installed_sha256: str
    unlisted: tuple[Path, ...]


def folder(facts: dict[str, Any]) -> Path:
    """Where the environment that ``environments/NAME.json`` describes lies in the store."""
    minor = ".".join(facts["python"].split(".")[:2])
    return store() / "environments" / f"{facts['name']}-{facts['lock_sha256'][:12]}-py{minor}"


def read(root: Path) -> Installed | None:
    """The environment in a folder; None if there is no complete one.

    Compiled bytecode is Python's own, made after the installation, and isn't looked at.
    """
    site_packages = next(root.glob("lib/python3*/site-packages"), None)
    if site_packages is None or not (root / "complete.json").is_file():
        return None
    digests: dict[Path, str] = {}
    listed: set[str] = set()
    lines: list[str] = []
    for name, hash in _entries(site_packages):
        path = os.path.normpath(site_packages / name)
        listed.add(path)
        if hash and "__pycache__" not in path:
            digests[Path(path)] = urlsafe_b64decode(hash + "=").hex()
        if hash and not name.startswith("../"):
            lines.append(f"{name} {hash}")
    return Installed(root, digests, digest_of(sorted(lines)), tuple(_others(site_packages, listed)))


def _entries(site_packages: Path) -> Iterator[tuple[str, str]]:
    """Path and base64 sha256 (may be empty) of every line of every RECORD."""
    for record in sorted(site_packages.glob("*.dist-info/RECORD")):
        with record.open(encoding="utf-8", newline="") as file:
            for name, hash, *_ in csv.reader(file):
                yield name, hash.partition("=")[2]


def _others(site_packages: Path, listed: set[str]) -> Iterator[Path]:
    for folder, folders, names in os.walk(site_packages):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            if (path := os.path.join(folder, name)) not in listed:
                yield Path(path)
