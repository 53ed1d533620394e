"""Records, roots and JSON files as they lie in a results directory: None where there is none to be read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reproquant.provenance.record import Program, Record
from reproquant.provenance.root import NAME, Root, parse


@dataclass(frozen=True)
class Read:
    """A record file that was read: its digest, and the record, if it is one."""

    sha256: str
    record: Record | None

    @property
    def subjects(self) -> dict[str, str]:
        """The sha256 of each output."""
        return {item.name: item.digest.sha256 for item in self._whole.subject}

    @property
    def dependencies(self) -> dict[str, tuple[str, str | None]]:
        """The sha256 of each input and of its record."""
        found = self._whole.predicate.buildDefinition.resolvedDependencies
        return {item.name: (item.digest.sha256, item.annotations.record_sha256) for item in found}

    @property
    def recipe(self) -> dict[str, Any]:
        return self._whole.predicate.buildDefinition.externalParameters

    @property
    def times(self) -> tuple[str, str]:
        """When the stage started and ended."""
        metadata = self._whole.predicate.runDetails.metadata
        return metadata.startedOn, metadata.finishedOn

    @property
    def programs(self) -> list[Program]:
        """The outside programs that the stage ran."""
        return self._whole.predicate.runDetails.metadata.programs

    @property
    def stored(self) -> dict[str, Any] | None:
        """The result's key in the store, and whether it came from there; None if it isn't kept there."""
        stored: dict[str, Any] | None = self._whole.predicate.buildDefinition.internalParameters.get("stored")
        return stored

    @property
    def answered(self) -> bool:
        """Whether the store had the result already."""
        return bool(self.stored and self.stored["answered"])

    @property
    def _whole(self) -> Record:
        assert self.record is not None
        return self.record


def read_root(results: Path) -> Root | None:
    """The study's root; None if there is none or it is damaged."""
    try:
        return parse((results / NAME).read_bytes())
    except OSError:
        return None


def read_record(path: Path) -> Read | None:
    """A record file; None if it can't be read."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    sha256 = hashlib.sha256(content).hexdigest()
    try:
        return Read(sha256, Record.model_validate_json(content))
    except ValidationError:
        return Read(sha256, None)


def read_json(path: Path) -> Any:
    """The data of a JSON file; None if there is none that can be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
