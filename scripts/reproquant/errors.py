"""The one way a known failure reaches the user: where, why, what to do."""

from errno import ENOSPC


class ReproquantError(Exception):
    """A failure that the user can act on.

    ``where`` names the key, file or tool; ``reason`` says what is wrong with
    it and why that matters; ``remedy`` says what to do. ``str()`` gives the
    three lines that every program of the project prints before it exits with
    code 2.
    """

    def __init__(self, where: object, reason: str, remedy: str) -> None:
        super().__init__(where, reason, remedy)
        self.where = str(where)
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"error: {self.where}\n  why: {self.reason}\n  do:  {self.remedy}"


def of_system(error: OSError, doing: str) -> ReproquantError:
    """What the operating system refused, at the file that it names, or else where ``doing`` says."""
    remedy = "free some space" if error.errno == ENOSPC else "check the path, its permissions and the disk"
    return ReproquantError(
        error.filename or doing, error.strerror or str(error), f"{remedy}, then run the same command again"
    )


class StudyError(ReproquantError):
    """A study file that can't be run as it stands."""


class ToolError(ReproquantError):
    """An outside program that failed; the reason holds its own last lines."""


class FormatError(ReproquantError):
    """A file that is not what its name or its maker promised."""


class DownloadError(ReproquantError):
    """Bytes that could not be fetched, or came and were not the pinned ones."""
