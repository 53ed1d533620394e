"""Files: digests, canonical JSON, atomic writes, and where the shared store lies."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 22


def repository() -> Path:
    """The checkout that this library belongs to."""
    return Path(__file__).resolve().parents[2]


def store() -> Path:
    """The folder for what studies share: environments, sources, builds, downloads.

    ``REPROQUANT_STORE``, or ``reproquant`` in the user's cache folder. It holds
    only what can be made again, under names that are digests of what made it.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reproquant"
    return Path(os.environ.get("REPROQUANT_STORE") or default)


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes, read once in bounded memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_text(text: str) -> str:
    """Hex sha256 of a text's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spare blanks: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(value: Any) -> str:
    """Hex sha256 of a JSON value in its canonical form."""
    return sha256_text(canonical_json(value))


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: a temporary neighbour, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people: sorted, indented, whole or not at all."""
    write_text(path, json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def listed(manifest: Path) -> list[tuple[str, str]]:
    """Path (relative to the manifest's folder) and sha256 of the files that a manifest lists.

    A JSON file that is no manifest lists none.
    """
    data = read_json(manifest)
    if not isinstance(data, dict) or not {"directory", "files"} <= data.keys():
        return []
    return [(f"{data['directory']}/{file['path']}", file["sha256"]) for file in data["files"]]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the kernel frees it when a holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
