"""Numbers with a source: the only figures that a report may show.

A ``Number`` comes into being in two ways: ``Numbers.take`` reads it out of a
file of the results directory by RFC 6901 JSON pointer, ``Numbers.derive``
computes it from numbers already taken by a formula that has a name. A ``Quote``
is the same for words. Whoever renders a report gets these and nothing else.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from reproquant.errors import FormatError
from reproquant.provenance.lineage import FORMULAS, dereference


@dataclass(frozen=True)
class Source:
    """A place in a file: path relative to the results directory, the file's sha256, JSON pointer."""

    path: str
    sha256: str
    pointer: str


@dataclass(frozen=True)
class Derived:
    """A computation: the name of a formula and the ids of the numbers it takes, in order."""

    formula: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Number:
    """A figure; ``origin`` says where it was read or how it was computed."""

    id: str
    value: int | float
    unit: str
    origin: Source | Derived

    def entry(self) -> dict[str, Any]:
        """The number as it stands in report.json."""
        head = {"id": self.id, "value": self.value, "unit": self.unit}
        if isinstance(self.origin, Source):
            source = self.origin
            return {
                **head,
                "source": {"path": source.path, "sha256": source.sha256, "pointer": source.pointer},
            }
        return {**head, "derived": {"formula": self.origin.formula, "inputs": list(self.origin.inputs)}}


@dataclass(frozen=True)
class Quote:
    """Words taken from a file, unchanged."""

    text: str
    source: Source


@dataclass(frozen=True)
class Series:
    """A column of figures as it stands in a file, for a plot; null where it has none."""

    values: tuple[float | None, ...]
    unit: str
    source: Source


class Numbers:
    """The registry of one report's numbers, in the order in which they were taken.

    ``made`` are files that the report itself is about to put among the results: where they lie now, by
    the path that they will have.
    """

    def __init__(self, results: Path, made: Mapping[str, Path] | None = None) -> None:
        self._results = results
        self._made = dict(made or {})
        self._files: dict[str, tuple[Any, str]] = {}
        self._numbers: dict[str, Number] = {}

    def __iter__(self) -> Iterator[Number]:
        return iter(self._numbers.values())

    def __getitem__(self, id: str) -> Number:
        return self._numbers[id]

    def read(self, path: str) -> Any:
        """The JSON data of a file of the results directory; each file is read and hashed once.

        Raises FormatError if the path leaves the directory, there is no such
        file, or it isn't JSON (NaN and Infinity aren't).
        """
        return self._load(path)[0]

    def has(self, path: str) -> bool:
        """Whether the results directory holds that file."""
        return self._place(path).is_file()

    def makes(self, path: str) -> bool:
        """Whether that file is one that the report itself writes."""
        return path in self._made

    def files(self) -> dict[str, str]:
        """The sha256 of every file read so far, by path."""
        return {path: digest for path, (_, digest) in sorted(self._files.items())}

    def take(self, path: str, at: str, unit: str, id: str) -> Number:
        """The number at JSON pointer ``at`` of a file; taking the same id again gives the same number.

        Raises FormatError if there is nothing, or no finite number, at that
        place, or if the id already belongs to another number.
        """
        value, source = self._dereference(path, at)
        if not _finite(value):
            _refuse(f"{path}#{at}", f"a number is wanted here but {value!r} was found")
        return self._add(Number(id, value, unit, source))

    def series(self, path: str, at: str, unit: str, each: str | None = None) -> Series:
        """The list of numbers and nulls at JSON pointer ``at`` of a file, or at key ``each`` of its items.

        Raises FormatError if there is no such list.
        """
        found, source = self._dereference(path, at)
        values = [item.get(each) for item in found] if each else found
        if not isinstance(values, list) or not all(value is None or _finite(value) for value in values):
            _refuse(f"{path}#{at}", "a list of numbers is wanted here")
        return Series(tuple(values), unit, source)

    def quote(self, path: str, at: str) -> Quote:
        """The text at JSON pointer ``at`` of a file, yes or no for a boolean; refuses anything else."""
        value, source = self._dereference(path, at)
        if isinstance(value, bool):
            return Quote("yes" if value else "no", source)
        if not isinstance(value, str):
            _refuse(f"{path}#{at}", f"text is wanted here but {value!r} was found")
        return Quote(value, source)

    def command(self, path: str, at: str) -> Quote:
        """The list of words at JSON pointer ``at`` of a file as a command line that a shell would take."""
        value, source = self._dereference(path, at)
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            _refuse(f"{path}#{at}", f"a command line is wanted here but {value!r} was found")
        return Quote(shlex.join(value), source)

    def derive(self, formula: str, inputs: Sequence[Number], unit: str, id: str) -> Number:
        """A number computed from others by a formula of ``FORMULAS``.

        Raises FormatError if an input isn't of this registry or the result isn't finite.
        """
        for number in inputs:
            if self._numbers.get(number.id) != number:
                _refuse(
                    id, f"it would be computed from '{number.id}', which was not taken from these results"
                )
        try:
            value = FORMULAS[formula]([number.value for number in inputs])
        except ZeroDivisionError:
            _refuse(id, f"'{formula}' of {', '.join(number.id for number in inputs)} divides by zero")
        if not _finite(value):
            _refuse(id, f"'{formula}' of {', '.join(number.id for number in inputs)} is {value}")
        return self._add(Number(id, value, unit, Derived(formula, tuple(number.id for number in inputs))))

    def _add(self, number: Number) -> Number:
        known = self._numbers.setdefault(number.id, number)
        if known != number:
            _refuse(number.id, "two different numbers of the report have this id")
        return known

    def _dereference(self, path: str, at: str) -> tuple[Any, Source]:
        data, digest = self._load(path)
        try:
            value = dereference(data, at)
        except LookupError:
            _refuse(f"{path}#{at}", "there is nothing at this place of the file")
        return value, Source(path, digest, at)

    def _place(self, path: str) -> Path:
        return self._made.get(path, self._results / path)

    def _load(self, path: str) -> tuple[Any, str]:
        if path not in self._files:
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                _refuse(path, "a number's source must lie inside the results directory")
            try:
                content = self._place(path).read_bytes()
                data = json.loads(content, parse_constant=_no_constant)
            except FileNotFoundError:
                _refuse(self._results / path, "the report needs this file and it isn't there")
            except ValueError as error:
                _refuse(self._results / path, f"it isn't JSON: {error}")
            self._files[path] = (data, sha256(content).hexdigest())
        return self._files[path]


def _finite(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _refuse(where: object, reason: str) -> NoReturn:
    raise FormatError(
        where, reason, "run snakemake again for this study: it makes what is missing or not as recorded"
    )
