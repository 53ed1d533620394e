"""What went wrong with a request, whether it may pass, and what to do when it doesn't."""

from __future__ import annotations

from reproquant.model.hub.progress import duration


class Trouble(Exception):
    """A failure in the words of ``DownloadError``.

    ``passing``: another try may succeed, after ``wait`` seconds if the Hub named them. ``answered``: some
    server of the Hub has answered. ``where`` is the file, if it is about one.
    """

    def __init__(
        self,
        reason: str,
        remedy: str,
        *,
        where: str = "",
        passing: bool = False,
        wait: float | None = None,
        answered: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.where = where
        self.passing = passing
        self.wait = wait
        self.answered = answered

    def given_up(self, waited: float, limit: float) -> Trouble:
        """The same, said at the end of patience."""
        if self.wait is not None and self.wait > limit - waited:
            end = f"it asks to wait {duration(self.wait)}, and {duration(limit)} are waited at most"
        else:
            end = f"given up after waiting {duration(waited)}"
        return Trouble(f"{self.reason}; {end}", self.remedy, where=self.where)


class Contradiction(Trouble):
    """An answer that can't be the file which the Hub's own metadata describes."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy, passing=True, answered=True)
