"""The record beside an artifact: an in-toto Statement v1 with SLSA v1 provenance.

``X.prov.json`` stands beside X. It names the outputs and inputs by sha256, and
each input's own record by sha256 too, so that the records of a study form a
Merkle chain from a report's numbers to the model's revision.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from reproquant import __version__, process
from reproquant.errors import FormatError
from reproquant.files import read_json, repository, sha256_file

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:reproquant:stage:v1"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Sha256(Part):
    sha256: str


class Resource(Part):
    """A file, by its path in the results directory and its digest."""

    name: str
    digest: Sha256


class RecordNote(Part):
    record_sha256: str | None = Field(
        description="digest of the input's own record; none for a study or a root"
    )


class Dependency(Resource):
    annotations: RecordNote


class BuildDefinition(Part):
    buildType: Literal["urn:reproquant:stage:v1"]
    externalParameters: dict[str, Any] = Field(description="the recipe")
    internalParameters: dict[str, Any] = Field(description="checkout, interpreter and platform")
    resolvedDependencies: list[Dependency]


class Builder(Part):
    id: str


class Program(Part):
    """An outside program that the stage ran, such as a compiler or a server."""

    name: str
    startedOn: str
    finishedOn: str


class Metadata(Part):
    startedOn: str
    finishedOn: str
    programs: list[Program] = []


class RunDetails(Part):
    builder: Builder
    metadata: Metadata


class Provenance(Part):
    buildDefinition: BuildDefinition
    runDetails: RunDetails


class Record(Part):
    """One stage's record."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[Resource]
    predicateType: Literal["https://slsa.dev/provenance/v1"]
    predicate: Provenance


def record_path(artifact: Path) -> Path:
    """Where an artifact's record stands."""
    return artifact.with_name(artifact.name + ".prov.json")


def record_of(path: Path, root: Path) -> Path | None:
    """The record that names a file: its own, or that of another output of the same stage in its folder."""
    if (own := record_path(path)).is_file():
        return own
    name = _name(path, root)
    for record in sorted(path.parent.glob("*.prov.json")):
        if name in subjects(statement(record)):
            return record
    return None


def statement(record: Path) -> dict[str, Any]:
    """A record file's data; raises FormatError if it holds no statement about files."""
    try:
        data: dict[str, Any] = read_json(record)
        subjects(data)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise FormatError(record, f"it is no record: {error}", "reproquant audit") from error
    return data


def subjects(statement: dict[str, Any]) -> dict[str, str]:
    """The sha256 of each file that a record is about."""
    return {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}


def compose(
    root: Path,
    recipe: dict[str, Any],
    inputs: Iterable[Path],
    outputs: Mapping[Path, str],
    started: str,
    finished: str,
    stored: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of a finished stage as JSON data; paths are given relative to ``root``.

    ``outputs`` come with their sha256; an input's is taken from its own record
    where it has one. ``stored`` is the key in the store of results and, if the
    stage was answered from there, when the result was made. The outside programs are those that
    this process has run.
    """
    record = Record(
        type=STATEMENT,
        subject=[
            Resource(name=_name(path, root), digest=Sha256(sha256=digest)) for path, digest in outputs.items()
        ],
        predicateType=PREDICATE,
        predicate=Provenance(
            buildDefinition=BuildDefinition(
                buildType=BUILD_TYPE,
                externalParameters=recipe,
                internalParameters={
                    "git": checkout(),
                    "python": platform.python_version(),
                    "platform": _platform(),
                    "stored": stored,
                },
                resolvedDependencies=[dependency(path, root) for path in inputs],
            ),
            runDetails=RunDetails(
                builder=Builder(id=f"urn:reproquant:{__version__}"),
                metadata=Metadata(
                    startedOn=started,
                    finishedOn=finished,
                    programs=[
                        Program(
                            name=program.name,
                            startedOn=program.started,
                            finishedOn=program.finished or finished,
                        )
                        for program in process.PROGRAMS.values()
                    ],
                ),
            ),
        ),
    )
    return record.model_dump(by_alias=True)


def checkout() -> dict[str, Any]:
    """Commit of the project's checkout and whether tracked files differ from it."""

    def git(*words: str) -> str | None:
        command = ["git", "-C", str(repository()), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        changes = git("status", "--porcelain", "--untracked-files=no")
        return {"commit": git("rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}
    except FileNotFoundError:
        return {"commit": None, "dirty": None}


def dependency(path: Path, root: Path) -> Dependency:
    """An input with its digest, and that of the record that names it if there is one."""
    record = record_of(path, root)
    if record is None:
        return Dependency(
            name=_name(path, root),
            digest=Sha256(sha256=sha256_file(path)),
            annotations=RecordNote(record_sha256=None),
        )
    name = _name(path, root)
    return Dependency(
        name=name,
        digest=Sha256(sha256=subjects(statement(record))[name]),
        annotations=RecordNote(record_sha256=sha256_file(record)),
    )


def _name(path: Path, root: Path) -> str:
    return path.resolve().relative_to(root.resolve()).as_posix()


def _platform() -> dict[str, str]:
    return {"system": platform.system(), "release": platform.release(), "machine": platform.machine()}
