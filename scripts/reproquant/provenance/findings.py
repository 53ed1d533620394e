"""What an audit finds, and the command that mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from reproquant.errors import StudyError
from reproquant.files import repository
from reproquant.study import read_yaml

SHOWN_DIGITS = 12


class Kind(StrEnum):
    """The kinds of findings, the gravest first."""

    TAMPERED = "tampered"
    BROKEN = "broken chain"
    MISSING = "missing"
    STALE = "stale"


EXIT_CODES = {Kind.TAMPERED: 3, Kind.BROKEN: 4, Kind.MISSING: 6, Kind.STALE: 5}


@dataclass(frozen=True)
class Finding:
    """One thing that isn't as it was recorded; ``file`` is relative to the results directory or absolute."""

    kind: Kind
    file: str
    what: str
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        seen = f"expected {_short(self.expected)}, found {_short(self.found)}"
        return f"{self.kind}: {self.file}: {self.what}: {seen}; do: {self.remedy}"

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def missing(file: str, why: str, remedy: str) -> Finding:
    """A file that isn't there and must be."""
    return Finding(Kind.MISSING, file, why, "a file", "none", remedy)


def exit_code(findings: Sequence[Finding]) -> int:
    """0, or the code of the gravest finding."""
    kinds = {finding.kind for finding in findings}
    return next((EXIT_CODES[kind] for kind in Kind if kind in kinds), 0)


@dataclass(frozen=True)
class Remedies:
    """Commands, to be run in the checkout, that make things of one study anew; no run makes published ones.

    Snakemake looks at times, not at bytes: a damaged intermediate has to be
    named, or it says that nothing is to be done.
    """

    study: str
    published: bool = False

    @property
    def run(self) -> str:
        """Make what is out of date."""
        return f"snakemake --cores all{_configfile(self.study)}"

    def again(self, *outputs: str) -> str:
        """Make these outputs, and all that was made from them, whatever Snakemake thinks of them."""
        if self.published:
            return f"put {', '.join(outputs)} back from a copy, or publish the study again"
        names = " ".join(f"results/{self.study}/{output}" for output in outputs)
        return f"{self.run} --forcerun {names}"


@cache
def _configfile(study: str) -> str:
    """The option that names a study's file, which is the one with its name; none for config.yaml."""
    folder = repository()
    if _name_in(folder / "config.yaml") == study:
        return ""
    files = sorted((folder / "workflow/studies").glob("*.yaml"))
    named = [path.relative_to(folder) for path in files if _name_in(path) == study]
    return f" --configfile {named[0] if named else 'STUDY.yaml'}"


def _name_in(path: Path) -> str | None:
    try:
        data = read_yaml(path)
    except StudyError:
        return None
    return data.get("name") if isinstance(data, dict) else None


def _short(text: str) -> str:
    """A digest by its first digits; other text as it is."""
    is_digest = len(text) == 64 and not set(text) - set("0123456789abcdef")
    return f"sha256 {text[:SHOWN_DIGITS]}…" if is_digest else text
