"""A folder of copies that is there whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reproquant.errors import FormatError


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to copy a study's files into; it becomes ``target`` when the body has succeeded.

    Raises FormatError if ``target`` exists, and for a file that the body doesn't find.
    """
    if target.exists():
        raise FormatError(target, "it already exists, and nothing is overwritten", "name a new folder")
    scratch = target.with_name(f".{target.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
        scratch.rename(target)
    except FileNotFoundError as error:
        raise FormatError(error.filename, "the study has it no more", "reproquant audit") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
