"""Digests of many files: each byte read once, several files at a time."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from reproquant.files import CHUNK_BYTES

THREADS = min(8, os.cpu_count() or 1)
SMALL_BYTES = 1 << 16

Progress = Callable[[int, int], None]
"""Told the bytes that were dealt with since the last call, and those of all files."""

Stamp = tuple[int, int, int, int]
"""Size, modification time, change time (both in ns) and inode."""


class Digests:
    """The digests of one audit.

    ``trusted`` holds digests by path with the stamp that the file had then; one
    whose stamp is unchanged isn't read again. With none, every file is read.
    """

    def __init__(self, trusted: dict[str, tuple[Stamp, str]] | None = None) -> None:
        self._trusted = trusted or {}
        self._known: dict[Path, str | None] = {}
        self.stamps: dict[Path, Stamp] = {}
        self.unread: set[Path] = set()

    def sha256(self, path: Path, advance: Callable[[int], None] = lambda done: None) -> str | None:
        """Hex sha256 of a file; None if there is none, the system's words if it can't be read.

        ``advance`` is told the bytes that are dealt with, as they are.
        """
        if path not in self._known:
            self._known[path] = self._digest(path, advance)
        return self._known[path]

    def hash_all(self, paths: Iterable[Path], progress: Progress) -> None:
        """Hash files in parallel, large ones first."""
        sizes = {path: _size(path) for path in set(paths)}
        total = sum(sizes.values())
        waiting = deque(sorted(sizes, key=lambda path: -sizes[path]))

        def work() -> None:
            with suppress(IndexError):
                while True:
                    self.sha256(waiting.popleft(), lambda done: progress(done, total))

        with ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(work) for _ in range(THREADS)]:
                done.result()

    @property
    def count(self) -> int:
        """How many files were looked at."""
        return len(self._known)

    @property
    def bytes_read(self) -> int:
        return sum(stamp[0] for path, stamp in self.stamps.items() if path not in self.unread)

    def memory(self) -> dict[str, Any]:
        """What a later audit may trust, as JSON data: the files that take time to read."""
        large = {path: stamp for path, stamp in self.stamps.items() if stamp[0] >= SMALL_BYTES}
        return {str(path): [*stamp, self._known[path]] for path, stamp in large.items()}

    @staticmethod
    def remembered(data: dict[str, Any]) -> dict[str, tuple[Stamp, str]]:
        """``memory`` as ``trusted`` wants it."""
        return {path: (tuple(entry[:4]), entry[4]) for path, entry in data.items()}

    def _digest(self, path: Path, advance: Callable[[int], None]) -> str | None:
        try:
            status = path.stat()
            stamp = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            trusted = self._trusted.get(str(path))
            if trusted and trusted[0] == stamp:
                self.unread.add(path)
                digest = trusted[1]
                advance(status.st_size)
            else:
                digest = _read(path, advance)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"unreadable: {error.strerror}"
        self.stamps[path] = stamp
        return digest


def _read(path: Path, advance: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
