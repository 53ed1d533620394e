"""One of two results that are compared: its study, measurements, evaluations and records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
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
        return _of_folder(path, sorted(path.glob("bench/*.json")))
    data = _json(path)
    if isinstance(data, dict) and {"numbers", "subjects", "files"} <= data.keys():
        return _of_folder(path.parent.parent, sorted(path.parent.parent.glob("bench/*.json")))
    if isinstance(data, dict) and {"subject", "levels"} <= data.keys():
        folder = path.parent.parent
        if path.parent.name == "bench" and (folder / "study.json").is_file():
            return _of_folder(folder, [path], with_qualities=False)
        measurement = _as(Measurement, path)
        return Side(path, {}, {measurement.subject: measurement}, {}, {})
    raise _unusable(path, "it is neither a measurement nor a report.json")


def _of_folder(folder: Path, measured: list[Path], with_qualities: bool = True) -> Side:
    measured = [path for path in measured if not path.name.endswith(RECORD)]
    if not measured or not (folder / "study.json").is_file():
        raise _unusable(folder, "it holds no study.json with measurements in bench/")
    measurements = [_as(Measurement, path) for path in measured]
    evaluated = [path for path in sorted(folder.glob("quality/*.json")) if not path.name.endswith(RECORD)]
    return Side(
        path=folder,
        study=_json(folder / "study.json"),
        measurements={one.subject: one for one in measurements},
        qualities={path.stem: _quality(path) for path in evaluated} if with_qualities else {},
        records=dict(_records(folder)),
    )


def _records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(folder.glob(f"*/*{RECORD}")):
        yield path.relative_to(folder).as_posix().removesuffix(RECORD), _json(path)


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
