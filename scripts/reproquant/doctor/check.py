"""One check: what was found, what is needed, what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "unknown", "warning", "impossible"]


@dataclass(frozen=True)
class Check:
    """A row of the doctor's table. ``impossible`` is the only verdict that stops a run."""

    name: str
    verdict: Verdict
    found: str
    needed: str
    remedy: str = ""

    def as_data(self) -> dict[str, Any]:
        """The row as JSON data."""
        return asdict(self)


def check(
    name: str, fine: bool, found: str, needed: str, remedy: str, otherwise: Verdict = "warning"
) -> Check:
    """A row that is ok if ``fine``, and else ``otherwise`` with its remedy."""
    return Check(name, "ok", found, needed) if fine else Check(name, otherwise, found, needed, remedy)
