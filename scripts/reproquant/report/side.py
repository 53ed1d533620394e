"""One of two results that are compared: its study, measurements, evaluations and records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from reproquant.bench.measurement import Measurement
from reproquant.errors import FormatError
from reproquant.quality.result import Original, Quality

RECORD = ".prov.json"
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Side:
    """``study`` is the resolved study's data, empty where only a measurement was given.

    ``measurements`` go by subject, ``qualities`` by artifact, ``records`` (in-toto statements) by the path of
    what they are of, relative to the results directory.
    """

    path: Path
    study: dict[str, Any]
    measurements: dict[str, Measurement]
    qualities: dict[str, Quality]
    records: dict[str, dict[str, Any]]

    def upstream(self, name: str) -> dict[str, dict[str, Any]]:
        """The records of a file and of everything that it was made from."""
        found: dict[str, dict[str, Any]] = {}
        queue = [name]
        while queue:
            one = queue.pop()
            if one in self.records and one not in found:
                found[one] = self.records[one]
                definition = found[one]["predicate"]["buildDefinition"]
                queue += [item["name"] for item in definition["resolvedDependencies"]]
        return found


def load(path: Path) -> Side:
    """Read a results directory, a report.json that lies in one, or a single measurement.

    Raises FormatError for anything else, and for a measurement or an evaluation
    that isn't one.
    """
    if path.is_dir():
        return _of_folder(path)
    data = _json(path)
    if isinstance(data, dict) and {"numbers", "subjects", "files"} <= data.keys():
        return _of_folder(path.parent.parent)
    if isinstance(data, dict) and {"subject", "levels"} <= data.keys():
        measurement = _as(Measurement, path)
        folder = path.parent.parent
        if path.parent.name == "bench" and (folder / "study.json").is_file():
            whole = _of_folder(folder)
            return replace(whole, measurements={measurement.subject: measurement}, qualities={})
        return Side(path, {}, {measurement.subject: measurement}, {}, {})
    raise _unusable(path, "it is neither a measurement nor a report.json")


def _of_folder(folder: Path) -> Side:
    """What the study in ``folder`` names; a file that an earlier version of it left is no part of it."""
    if not (folder / "study.json").is_file():
        raise _unusable(folder, "it holds no study.json")
    study = _json(folder / "study.json")
    try:
        subjects = [folder / f"bench/{subject['name']}.json" for subject in study["subjects"]]
        artifacts = ("checkpoint", *study.get("quality", {}).get("artifacts", ()))
    except (KeyError, TypeError, AttributeError) as error:
        raise _unusable(folder / "study.json", f"it is no resolved study ({error!r})") from None
    evaluated = [path for name in artifacts if (path := folder / f"quality/{name}.json").is_file()]
    measurements = [_as(Measurement, path) for path in subjects if path.is_file()]
    if not measurements:
        raise _unusable(folder, "none of its study's subjects is measured")
    return Side(
        path=folder,
        study=study,
        measurements={one.subject: one for one in measurements},
        qualities={path.stem: _quality(path) for path in evaluated},
        records=dict(_records(folder)),
    )


def _records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(folder.glob(f"*/*{RECORD}")):
        record = _json(path)
        if not (isinstance(record, dict) and "buildDefinition" in record.get("predicate", {})):
            raise _unusable(path, "it is no record that can be read")
        yield path.relative_to(folder).as_posix().removesuffix(RECORD), record


def _quality(path: Path) -> Quality:
    return _as(Original if path.stem == "checkpoint" else Quality, path)


def _as(kind: type[Model], path: Path) -> Model:
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise _unusable(path, f"it isn't what its place says: {error}") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unusable(path, f"it can't be read: {error}") from None


def _unusable(path: Path, reason: str) -> FormatError:
    return FormatError(
        path,
        reason,
        "name a results directory such as results/v100, its report/report.json, or one bench/X.json",
    )
