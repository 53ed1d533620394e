"""The source of the real AutoFP8, which is on no package index, from git at one commit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from reproquant import process
from reproquant.errors import DownloadError, FormatError, ToolError
from reproquant.files import locked, store

COMMIT = "505a7edadf3f360a06aedc0735644ee507dceb8f"


def checkout(repository: str, log: Path) -> Path:
    """A checkout of AutoFP8 in the store, fetched once.

    Raises DownloadError with git's last words if it can't be had, FormatError
    if the one in the store was changed since.
    """
    place = store() / "sources" / f"autofp8-{COMMIT[:12]}"
    with locked(place.with_name(f"{place.name}.lock")):
        if not place.is_dir():
            partial = place.with_name(f"{place.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            try:
                _fetch(repository, partial, log)
                partial.rename(place)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    confirm(place)
    return place


def confirm(folder: Path) -> None:
    """Raise FormatError unless the folder is an unchanged checkout of the commit."""
    head = _said("-C", folder, "rev-parse", "HEAD")
    changes = _said("-C", folder, "status", "--porcelain", "--untracked-files=no")
    if head != COMMIT or changes != "":
        what = "it was changed" if head == COMMIT else f"it is no checkout of AutoFP8 at {COMMIT[:7]}"
        raise FormatError(folder, what, "delete this folder and run again, or give another one")


def _fetch(repository: str, folder: Path, log: Path) -> None:
    git = ["git", "-C", folder, "-c", "core.autocrlf=false"]
    try:
        process.run(["git", "init", "--quiet", folder], log)
        process.run([*git, "fetch", "--depth", 1, repository, COMMIT], log, {"GIT_TERMINAL_PROMPT": "0"})
        process.run([*git, "checkout", "--quiet", COMMIT], log)
    except ToolError as error:
        raise DownloadError(
            f"AutoFP8 from {repository} at {COMMIT[:7]}",
            error.reason,
            "check the network, name a copy of the repository that git can reach under "
            "fp8.autofp8_repository, or set fp8.backend: native, which makes the same codes and scales",
        ) from None


def _said(*words: object) -> str | None:
    """What git prints, or None if it fails."""
    command = ["git", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.strip()
