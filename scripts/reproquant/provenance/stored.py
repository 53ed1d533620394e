"""The store of results: a stage that would make the same thing again is answered from here.

A result's key is the digest of the stage's recipe and of its inputs' bytes; a
measurement's also of the machine. Files are hard links to the results where the
file system allows it, so that keeping them costs no space. They are hashed again
before they are used: a file damaged on either side is never believed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reproquant.files import digest_of, read_json, sha256_file, store, write_json

ENTRY = "entry.json"
SMALL_BYTES = 1 << 20
COPY_LIMIT_BYTES = 256 << 20
"""Where the store lies on another file system, larger files aren't copied into it."""


def key_of(recipe: Mapping[str, Any], inputs: Mapping[str, str], machine: Mapping[str, Any] | None) -> str:
    """The key of a result; ``inputs`` are names and sha256, ``machine`` is null where it can't matter."""
    return digest_of({"recipe": recipe, "inputs": inputs, "machine": machine})


@dataclass(frozen=True)
class Result:
    """A stage's finished work, by names below the results directory.

    ``outputs`` are files and folders in the order in which they are put into
    place, ``files`` the sha256 of every single file, ``made`` says when.
    """

    outputs: list[str]
    files: dict[str, str]
    made: dict[str, str]


def keep(key: str, root: Path, result: Result) -> None:
    """Remember a finished result, whose files lie below ``root``.

    Does nothing if the disk can't take it: a result needn't be remembered.
    """
    folder = _folder(key)
    scratch = folder.with_name(f".{key}.{os.getpid()}")
    try:
        for name in result.files:
            _link_or_copy(root / name, scratch / name)
        write_json(scratch / ENTRY, asdict(result))
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    except OSError as error:
        print(f"not kept in the store: {error}", flush=True)
        shutil.rmtree(scratch, ignore_errors=True)


def take(key: str, target: Path) -> Result | None:
    """Bring a kept result's files below the folder ``target``, or None.

    A result that isn't there, isn't whole or has another byte than it had is
    none; a damaged one is forgotten. One that can't be brought (the disk is full,
    or is another one and the files are large) is none, and stays.
    """
    folder = _folder(key)
    if not folder.exists():
        return None
    try:
        result = Result(**read_json(folder / ENTRY))
        with ThreadPoolExecutor() as pool:
            digests = pool.map(lambda name: sha256_file(folder / name), result.files)
            found = dict(zip(result.files, digests, strict=True))
        if found != result.files:
            raise ValueError("a file has other bytes than it had")
    except (OSError, ValueError, TypeError) as error:
        print(f"the store's result {key} is damaged and forgotten: {error}", flush=True)
        forget(key)
        return None
    try:
        for name in result.files:
            _link_or_copy(folder / name, target / name)
    except OSError as error:
        print(f"the store's result {key} can't be brought here: {error}", flush=True)
        shutil.rmtree(target, ignore_errors=True)
        return None
    return result


def forget(key: str) -> bool:
    """Remove a kept result; whether there was one."""
    there = _folder(key).exists()
    shutil.rmtree(_folder(key), ignore_errors=True)
    return there


def _folder(key: str) -> Path:
    return store() / "results" / key


def _link_or_copy(source: Path, target: Path) -> None:
    """Another name for the file's bytes; a small file is copied, so that editing one leaves the other."""
    target.parent.mkdir(parents=True, exist_ok=True)
    size = source.stat().st_size
    if size > SMALL_BYTES:
        try:
            return os.link(source.resolve(), target)
        except OSError:
            if size > COPY_LIMIT_BYTES:
                raise
    shutil.copyfile(source, target)
