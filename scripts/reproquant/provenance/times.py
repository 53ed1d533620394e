"""Where a study's time went, by its records: stages, their programs, and the workflow's own share.

A program is what does the work: a compiler, the converter, a quantizer, a server that is
measured, the engine's own benchmark. While none runs, the workflow itself takes the time, be it for
hashing, for starting its processes, for its own computing or for waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from reproquant.errors import FormatError
from reproquant.provenance.digests import Digests
from reproquant.provenance.evidence import Evidence
from reproquant.provenance.reading import Read
from reproquant.study import Study

Span = tuple[float, float]
"""Start and end in seconds since 1970."""

PAUSE_S = 60
"""If no stage was under way for longer than this, two runs lie on either side."""


@dataclass(frozen=True)
class StageTime:
    """A stage's artifact, the span of its work, and the spans in which its programs ran."""

    artifact: str
    span: Span
    programs: tuple[Span, ...]

    @property
    def seconds(self) -> float:
        return self.span[1] - self.span[0]

    @property
    def of_programs(self) -> float:
        """Seconds in which at least one of its programs ran."""
        return covered(self.programs)


@dataclass(frozen=True)
class Times:
    """All stages of a study in the order of their starts; those answered from the store are left out."""

    stages: tuple[StageTime, ...]
    answered: tuple[str, ...]

    @property
    def whole(self) -> float:
        """Seconds in which a stage was under way, or the next one of the same run was waited for."""
        return covered((one.span for one in self.stages), PAUSE_S)

    @property
    def of_programs(self) -> float:
        """Seconds of the whole in which at least one program ran."""
        return covered(span for one in self.stages for span in one.programs)

    @property
    def overhead(self) -> float:
        """The workflow's own seconds, as a part of the programs'."""
        return (self.whole - self.of_programs) / self.of_programs


def times(results: Path) -> Times:
    """The times of a study's results; raises FormatError if none was made by a program here."""
    evidence = Evidence.gather(results, Study.load(results / "study.json"), Digests())
    made, answered = [], []
    for artifact, read in evidence.believed():
        if read.answered:
            answered.append(artifact.main)
        else:
            made.append(StageTime(artifact.main, _span(*read.times), _programs(read)))
    if not any(one.programs for one in made):
        raise FormatError(results, "no record tells of a program that ran", "run the study with this version")
    return Times(tuple(sorted(made, key=lambda one: one.span)), tuple(answered))


def covered(spans: Iterable[Span], bridged_s: float = 0) -> float:
    """Seconds that the spans cover, and the gaps between them that last ``bridged_s`` at most."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        begin = reached if start - reached <= bridged_s else start
        total += max(0.0, end - begin)
        reached = max(reached, end)
    return total


def _programs(read: Read) -> tuple[Span, ...]:
    return tuple(_span(program.startedOn, program.finishedOn) for program in read.programs)


def _span(started: str, finished: str) -> Span:
    return datetime.fromisoformat(started).timestamp(), datetime.fromisoformat(finished).timestamp()
