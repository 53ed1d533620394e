"""One check: what was found, what is needed, what to do."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Literal

from reproquant.stages import STAGES

MEASURING = tuple(name for name, stage in STAGES.items() if stage.kept == "by recipe and machine")
"""The stages that need the study's GPUs."""

Verdict = Literal["ok", "unknown", "warning", "impossible"]


@dataclass(frozen=True)
class Check:
    """A row of the doctor's table. ``impossible`` is the only verdict that stops a run.

    ``stages`` are those that can't work then; none named: none of the study's can.
    """

    name: str
    verdict: Verdict
    found: str
    needed: str
    remedy: str = ""
    stages: tuple[str, ...] = ()

    def stops(self, running: Collection[str]) -> bool:
        """Whether a run in which these stages have work is in vain."""
        return self.verdict == "impossible" and (not self.stages or bool({*self.stages} & {*running}))

    def as_data(self) -> dict[str, Any]:
        """The row as JSON data."""
        return asdict(self)


def check(
    name: str,
    fine: bool,
    found: str,
    needed: str,
    remedy: str,
    otherwise: Verdict = "warning",
    stages: tuple[str, ...] = (),
) -> Check:
    """A row that is ok if ``fine``, and else ``otherwise`` with its remedy."""
    return Check(name, "ok", found, needed) if fine else Check(name, otherwise, found, needed, remedy, stages)
