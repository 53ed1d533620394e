"""A Python with packages that does a stage's work, whoever made it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reproquant import process
from reproquant.external import ISOLATED
from reproquant.files import repository


class Interpreter(ABC):
    """What every environment is to the stages: an interpreter, and what is installed for it."""

    @property
    @abstractmethod
    def python(self) -> Path:
        """The interpreter."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What is installed, as JSON data; takes a fraction of a second."""

    def examine(self) -> dict[str, Any]:
        """``describe``, and what takes longer to find out."""
        return self.describe()

    def run(
        self,
        words: Sequence[object],
        log: Path,
        variables: Mapping[str, str] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Run the interpreter with these words, to its end, without a user's own site-packages.

        ``tell`` gets what it writes to its standard output, line by line. Raises
        ToolError with the last lines of the log if it fails.
        """
        process.run([self.python, *words], log, {**ISOLATED, **(variables or {})}, tell=tell)

    def run_module(
        self,
        module: str,
        arguments: Sequence[object],
        log: Path,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Run a module of this project to its end, as ``run`` does."""
        self.run(["-m", module, *arguments], log, {"PYTHONPATH": str(repository() / "scripts")}, tell)
