"""The doctor: can this study run on this machine, and what is in its way? In seconds, before any download."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from reproquant.doctor.check import Check, Verdict
from reproquant.doctor.examination import CHECKS
from reproquant.doctor.reading import Reading, read
from reproquant.engines.compatibility import expectations
from reproquant.errors import ReproquantError
from reproquant.machine.host import without_private_paths
from reproquant.study import Study

__all__ = ["Check", "Impossible", "Reading", "Verdict", "as_data", "examine", "insist", "read"]


class Impossible(ReproquantError):
    """This machine can't run this study, whatever happens."""


def examine(study: Study, reading: Reading) -> tuple[Check, ...]:
    """Every check of ``study`` on the machine that ``reading`` describes, in a fixed order."""
    return tuple(check for checks in CHECKS for check in checks(study, reading))


def insist(study: Study, checks: tuple[Check, ...], running: Collection[str]) -> None:
    """Raise Impossible, with every reason and what to do, if one of the stages ``running`` can't work."""
    wrong = [check for check in checks if check.stops(running)]
    if wrong:
        raise Impossible(
            f"study '{study.name}' on this machine",
            "; ".join(f"{check.name}: found {check.found}, needed {check.needed}" for check in wrong),
            "; ".join(check.remedy for check in wrong),
        )


def as_data(study: Study, checks: tuple[Check, ...], reading: Reading) -> dict[str, Any]:
    """doctor.json: the checks, and what the compatibility table expects of each vLLM subject here."""
    rows = expectations(study, reading.capability if study.machine.gpus else None)
    data = {
        "study": study.name,
        "possible": all(check.verdict != "impossible" for check in checks),
        "checks": [check.as_data() for check in checks],
        "expected": {
            name: row.model_dump(mode="json", include={"verdict", "why", "evidence"})
            for name, row in rows.items()
        },
    }
    return dict(without_private_paths(data))
