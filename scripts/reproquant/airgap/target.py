"""The description of a machine without network: what it has, and what has to be carried there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from reproquant.errors import StudyError
from reproquant.study import PositiveInt, Slug, read_yaml

OLDEST_GLIBC = 5
"""manylinux_2_5, the first of its kind."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Packed(Part):
    """One environment that is installed on the target out of carried wheels."""

    folder: str = Field(description="where it goes, relative to the repository")
    lock: Slug | None = Field(
        default=None, description="a lock in envs/; without one, the environment has what the target has"
    )
    over_target: bool = Field(
        default=False,
        description="what the target's Python has is seen behind the environment's own packages",
    )
    project: bool = Field(default=False, description="this project itself is installed in it, too")
    leave_out: dict[str, str] = Field(
        default_factory=dict, description="locked packages that aren't carried, each with the reason"
    )


class Target(Part):
    """A machine without network, and what it is to run."""

    name: Slug
    study: str = Field(description="the study file; what it downloads besides packages is carried, too")
    python: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]
    glibc: Annotated[str, StringConstraints(pattern=r"^2\.\d+$")] = Field(
        description="of the target (ldd --version); wheels for it and for every older one fit"
    )
    part_mb: PositiveInt = Field(description="largest size of a part, in 10^6 bytes")
    has: dict[str, str | None] = Field(
        default_factory=dict,
        description="packages that the target's Python has and that stay as they are, with their version, "
        "or null where it isn't known",
    )
    environments: tuple[Packed, ...]
    wheels_of: tuple[Slug, ...] = Field(
        default=(), description="locks whose environments the workflow builds on the target by itself"
    )

    @model_validator(mode="after")
    def _only_behind(self) -> Target:
        for environment in self.environments:
            if environment.lock is None and not environment.over_target:
                raise ValueError(
                    f"environment {environment.folder} has neither a lock nor what the target has"
                )
        return self

    @classmethod
    def load(cls, path: Path) -> Target:
        """Read a target file; raises StudyError with one line for each wrong key."""
        try:
            return cls.model_validate_json(json.dumps(read_yaml(path)))
        except ValidationError as error:
            lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
            raise StudyError(
                path, "\n       ".join(lines), "mend these keys; docs/airgapped.md explains them"
            ) from None

    @property
    def platforms(self) -> list[str]:
        """The platform tags of wheels that run there; pip takes each of them literally."""
        newest = int(self.glibc.partition(".")[2])
        numbered = [f"manylinux_2_{minor}_x86_64" for minor in range(newest, OLDEST_GLIBC - 1, -1)]
        return [*numbered, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]

    @property
    def markers(self) -> dict[str, str]:
        """What environment markers of requirements mean there."""
        return {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "platform_machine": "x86_64",
            "os_name": "posix",
        }
