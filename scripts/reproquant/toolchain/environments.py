"""The environment of a role: built from its lock, or the Python that the user named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproquant import external
from reproquant.study import EXTERNAL, External, Role, Study
from reproquant.toolchain import python_env
from reproquant.toolchain.interpreter import Interpreter


@dataclass(frozen=True)
class ExternalEnv(Interpreter):
    """A Python of the user's own; nothing is installed into it."""

    role: Role
    settings: External

    @property
    def python(self) -> Path:
        return external.interpreter(self.settings)

    def describe(self) -> dict[str, Any]:
        """What ``freeze.frozen`` finds, and its digest."""
        return {
            "name": f"{EXTERNAL}{self.role}",
            "frozen_sha256": external.digest(self.role, self.settings),
            **external.frozen(self.role, self.settings),
        }

    def examine(self) -> dict[str, Any]:
        """``describe``, and what its torch was compiled for."""
        return {**self.describe(), "torch": external.torch(self.role, self.settings)}


def provide(study: Study, role: Role, log: Path) -> Interpreter:
    """The environment that does a role's work; a locked one is built first if the store has none.

    Raises StudyError for an external Python that can't do it, and what ``python_env.ensure`` raises.
    """
    chosen = study.environments.of(role)
    if isinstance(chosen, External):
        external.check_role(study, role)
        return ExternalEnv(role, chosen)
    return python_env.ensure(chosen, log)
