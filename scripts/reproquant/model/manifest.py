"""The manifest of a checkpoint: which files it is made of, to the byte, and where they come from."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from reproquant.errors import FormatError
from reproquant.files import read_json, sha256_file, write_json

REMEDY = "delete the manifest and run the workflow again: it makes the model anew"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ManifestFile(Part):
    """One file: ``path`` is relative to the checkpoint's directory, with forward slashes."""

    path: str
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Source(Part):
    """Where a checkpoint comes from; a kind adds its own keys (revision, seed, package...)."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    kind: str
    licence: str
    note: str


class ManifestData(Part):
    """The manifest file itself; ``directory`` is relative to the folder the manifest lies in."""

    name: str
    directory: str
    source: Source
    files: list[ManifestFile]


@dataclass(frozen=True)
class Manifest:
    """A checkpoint as its manifest describes it."""

    name: str
    directory: Path
    source: dict[str, Any]
    files: tuple[ManifestFile, ...]

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read a manifest. Raises FormatError if it isn't one or if its checkpoint is gone.

        The files' sizes are compared, not their digests: that would read the whole model.
        """
        try:
            data = ManifestData.model_validate(read_json(path))
        except (OSError, ValueError) as error:
            raise FormatError(
                path, f"it can't be read as a model manifest: {_first(error)}", REMEDY
            ) from error
        manifest = cls(
            name=data.name,
            directory=path.parent / data.directory,
            source=data.source.model_dump(),
            files=tuple(data.files),
        )
        manifest._check_sizes(path)
        return manifest

    @property
    def weight_bytes(self) -> int:
        """Bytes of all ``*.safetensors`` files."""
        return sum(file.bytes for file in self.files if file.path.endswith(".safetensors"))

    def _check_sizes(self, where: Path) -> None:
        for file in self.files:
            path = self.directory / file.path
            if not path.is_file():
                raise FormatError(where, f"it lists {path}, which does not exist", REMEDY)
            if (size := path.stat().st_size) != file.bytes:
                raise FormatError(
                    where, f"{path} has {size} bytes instead of {file.bytes}: it was changed", REMEDY
                )


def write(directory: Path, manifest: Path, name: str, source: dict[str, Any]) -> None:
    """Hash every file under ``directory`` and write the manifest, whole or not at all.

    Equal files give equal manifests: nothing in it depends on the time, the
    machine or an absolute path. Hidden files and folders are no part of the
    checkpoint. Raises FormatError if ``directory`` holds no weights.
    """
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and not _hidden(path, directory))
    if not any(path.suffix == ".safetensors" for path in paths):
        raise FormatError(
            directory,
            "it holds no *.safetensors, so it is no checkpoint",
            "give a directory with weights in it",
        )
    with ThreadPoolExecutor() as pool:
        files = list(pool.map(lambda path: _describe(path, directory), paths))
    data = ManifestData(
        name=name,
        directory=Path(os.path.relpath(directory, manifest.parent)).as_posix(),
        source=Source.model_validate(source),
        files=files,
    )
    write_json(manifest, data.model_dump())


def _describe(path: Path, directory: Path) -> ManifestFile:
    return ManifestFile(
        path=path.relative_to(directory).as_posix(), bytes=path.stat().st_size, sha256=sha256_file(path)
    )


def _hidden(path: Path, directory: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(directory).parts)


def _first(error: Exception) -> str:
    """One line of an error; pydantic's own text spreads over several."""
    if isinstance(error, ValidationError):
        item = error.errors()[0]
        return f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
    return str(error)
