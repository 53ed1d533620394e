"""The environment of a role: built from its lock, the Python that the user named, or a container image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproquant import external
from reproquant.study import EXTERNAL, External, InContainer, Role, Study
from reproquant.toolchain import container, python_env
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
    assert isinstance(chosen, str)
    return python_env.ensure(chosen, log)


def examine(study: Study, role: Role, log: Path) -> dict[str, Any]:
    """Everything that is known of a role's environment, which is built or pulled first if it isn't there.

    Raises what ``provide`` and ``container.provide`` do.
    """
    chosen = study.environments.of(role)
    if isinstance(chosen, InContainer):
        return container.provide(chosen.container, log).examine(study.vllm.version)
    return provide(study, role, log).examine()
