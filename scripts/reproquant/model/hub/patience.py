"""How long a download bears with a Hub that is away, busy, slow or broken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from reproquant.model.hub.progress import duration
from reproquant.model.hub.trouble import Contradiction, Trouble


@dataclass(frozen=True)
class Patience:
    """Bounds of a download, in seconds and bytes.

    A wait starts at ``first_wait`` and doubles with each failure in a row, up to ``longest_wait``; one that
    the Hub asks for goes before. Failures are in a row until ``step`` bytes came in between. All waits
    for one file, or for the list, together stay within ``waits`` (the Hub's own rate limit counts in
    windows of 300 s), and within ``waits_unanswered`` as long as the Hub has not answered at all.
    """

    silence: float = 30.0
    """Until a connection stands, and between two pieces of an answer."""
    first_wait: float = 1.0
    longest_wait: float = 30.0
    waits: float = 600.0
    waits_unanswered: float = 15.0
    slow_after: float = 60.0
    """Over this time less than ``step`` bytes came: the connection is given up for another one."""
    step: int = 1 << 18
    between_lines: float = 5.0


class Backoff:
    """The waits of one file, or of the list."""

    def __init__(
        self,
        patience: Patience,
        tell: Callable[[str], None],
        tries: int | None = None,
        stop: threading.Event | None = None,
        answered: bool = False,
    ) -> None:
        self.patience = patience
        self._tell = tell
        self._tries = tries
        self._stop = stop or threading.Event()
        self._in_a_row = 0
        self._waited = 0.0
        self._contradictions = 0
        self._answered = answered

    def got_through(self) -> None:
        """Bytes came in: the next wait is a short one again."""
        self._in_a_row = 0

    def wait(self, trouble: Trouble, what: str) -> None:
        """Wait for the next try. Raises ``trouble`` if it won't pass or patience is at its end.

        An answer that contradicts the Hub's metadata is asked for once more; the second is the end.
        """
        self._answered |= trouble.answered
        self._in_a_row += 1
        limit = self.patience.waits if self._answered else self.patience.waits_unanswered
        seconds = trouble.wait
        if seconds is None:
            seconds = min(self.patience.first_wait * 2 ** (self._in_a_row - 1), self.patience.longest_wait)
        self._contradictions += isinstance(trouble, Contradiction)
        if (
            not trouble.passing
            or self._contradictions > 1
            or self._stop.is_set()
            or self._in_a_row == self._tries
        ):
            raise trouble
        if self._waited + seconds > limit:
            raise trouble.given_up(self._waited, limit)
        self._tell(f"{what}: {trouble.reason}; trying again in {duration(seconds)}")
        self._waited += seconds
        self._stop.wait(seconds)
