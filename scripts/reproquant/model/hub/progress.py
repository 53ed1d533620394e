"""Lines that tell a person how far a download is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def amount(size: float) -> str:
    """Bytes for people: powers of 1000, three digits."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB" if size < 99.95 else f"{size:.0f} GB"


def duration(seconds: float) -> str:
    """A time for people, in two units at most."""
    if seconds < 59.5:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


class Progress:
    """Counts the bytes of all files together and tells a line every ``between_lines`` seconds."""

    def __init__(self, total: int, tell: Callable[[str], None], between_lines: float) -> None:
        self._total = total
        self._tell = tell
        self._between = between_lines
        self._lock = threading.Lock()
        self._received = 0
        self._begin = self._last = time.monotonic()

    def received(self, size: int) -> None:
        """``size`` more bytes have come."""
        with self._lock:
            self._received += size
            now = time.monotonic()
            if now - self._last < self._between:
                return
            self._last = now
            rate = self._received / max(now - self._begin, 1e-9)
            left = duration((self._total - self._received) / rate)
            share = 100 * self._received // self._total
            line = f"{amount(self._received)} of {amount(self._total)} ({share} %)"
            line += f", {amount(rate)}/s, {left} left"
        self._tell(line)

    def dropped(self, size: int) -> None:
        """``size`` bytes that were here are thrown away: so many more are to come."""
        with self._lock:
            self._total += size

    def finish(self) -> None:
        """Tell the whole of it."""
        took = max(time.monotonic() - self._begin, 1e-9)
        self._tell(
            f"{amount(self._received)} in {duration(took)}, {amount(self._received / took)}/s; "
            "all digests are the Hub's"
        )
