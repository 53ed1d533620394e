"""Files cut into parts of limited size, and put together again. Needs Python's standard library alone.

A part is a file that holds pieces of the carried files, one behind the other, in
their order; the manifest says which. So a file is complete as soon as the parts
that hold it have come, in whatever order.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reproquant.errors import FormatError
from reproquant.files import CHUNK_BYTES, read_json, sha256_file, write_json

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Carried:
    """A file that travels: its path in the bundle, its digest and size."""

    path: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Piece:
    """Bytes ``start`` to ``start + bytes`` of the carried file number ``file``."""

    file: int
    start: int
    bytes: int


@dataclass(frozen=True)
class PartFile:
    """A part: its name, digest and size, and the pieces that it holds in their order."""

    name: str
    sha256: str
    bytes: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Manifest:
    """What a bundle holds. ``contents`` says what is done with the files on the target."""

    files: tuple[Carried, ...]
    parts: tuple[PartFile, ...]
    contents: dict[str, Any]

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read the manifest of a folder of parts; raises FormatError if there is none."""
        path = folder / MANIFEST
        try:
            data = read_json(path)
            return cls(
                files=tuple(Carried(**file) for file in data["files"]),
                parts=tuple(
                    PartFile(**{**part, "pieces": tuple(Piece(**piece) for piece in part["pieces"])})
                    for part in data["parts"]
                ),
                contents=data["contents"],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FormatError(
                path, f"it can't be read as the manifest of a bundle: {error}", "carry it there again"
            ) from error

    def write(self, folder: Path) -> None:
        """Write the manifest, whole or not at all."""
        write_json(folder / MANIFEST, asdict(self))


def cut(
    root: Path, files: Sequence[Carried], part_bytes: int, folder: Path, contents: dict[str, Any]
) -> Manifest:
    """Write ``files``, which lie below ``root``, as parts into ``folder``, and the manifest last.

    Equal files give equal parts. Parts of another bundle are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    parts = []
    for number, pieces in enumerate(_divided(files, part_bytes), 1):
        target = folder / f"part-{number:03}"
        scratch = target.with_suffix(".partial")
        with scratch.open("wb") as output:
            for piece in pieces:
                _copy(root / files[piece.file].path, piece, output)
        scratch.replace(target)
        parts.append(PartFile(target.name, sha256_file(target), target.stat().st_size, tuple(pieces)))
    for stray in set(folder.glob("part-*")) - {folder / part.name for part in parts}:
        stray.unlink()
    manifest = Manifest(tuple(files), tuple(parts), contents)
    manifest.write(folder)
    return manifest


def _divided(files: Sequence[Carried], part_bytes: int) -> Iterator[list[Piece]]:
    """The files' bytes in their order, ``part_bytes`` at a time."""
    pieces: list[Piece] = []
    room = part_bytes
    for number, file in enumerate(files):
        start = 0
        while start < file.bytes:
            size = min(room, file.bytes - start)
            pieces.append(Piece(number, start, size))
            start, room = start + size, room - size
            if not room:
                yield pieces
                pieces, room = [], part_bytes
    if pieces:
        yield pieces


def _copy(source: Path, piece: Piece, output: Any) -> None:
    with source.open("rb") as file:
        file.seek(piece.start)
        _pour(file, output, piece.bytes)


def _pour(source: Any, output: Any, left: int) -> None:
    """Copy so many bytes from where one file stands to where the other does."""
    while left and (chunk := source.read(min(left, CHUNK_BYTES))):
        output.write(chunk)
        left -= len(chunk)


def join(manifest: Manifest, folder: Path, target: Path) -> list[Carried]:
    """Put together what the parts in ``folder`` hold, below ``target``; return the files that are complete.

    A part is read once: which ones were is remembered in ``target``, so parts may come one
    after the other and go again. Raises FormatError for a part or a file whose bytes aren't
    those of the manifest; nothing of a damaged part is used.
    """
    used = target / ".used"
    used.mkdir(parents=True, exist_ok=True)
    for part in manifest.parts:
        mark, source = used / part.sha256, folder / part.name
        if mark.exists() or not source.is_file():
            continue
        if sha256_file(source) != part.sha256:
            raise FormatError(source, "its bytes are not those that were packed", "carry this part again")
        _unpack(manifest, part, source, target)
        mark.touch()
    come: dict[int, int] = {}
    for part in manifest.parts:
        if (used / part.sha256).exists():
            for piece in part.pieces:
                come[piece.file] = come.get(piece.file, 0) + piece.bytes
    whole = [file for number, file in enumerate(manifest.files) if come.get(number) == file.bytes]
    for file in whole:
        _put_in_place(file, target, used)
    return whole


def _unpack(manifest: Manifest, part: PartFile, source: Path, target: Path) -> None:
    with source.open("rb") as file:
        for piece in part.pieces:
            place = _partial(target / manifest.files[piece.file].path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
            with place.open("r+b") as output:
                output.seek(piece.start)
                _pour(file, output, piece.bytes)


def _put_in_place(file: Carried, target: Path, used: Path) -> None:
    """Check a file that has come wholly and give it its name; its namesake of an older bundle goes."""
    place = target / file.path
    scratch = _partial(place)
    if place.exists() and not scratch.exists():
        return
    if sha256_file(scratch) != file.sha256:
        shutil.rmtree(used)
        raise FormatError(
            place, "put together, its bytes are not those that were packed", "carry all parts again"
        )
    scratch.replace(place)


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")
