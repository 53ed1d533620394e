"""Study files and locks on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from reproquant.errors import StudyError
from reproquant.files import repository


def lock_path(environment: str) -> Path:
    """The lock file of an environment's name."""
    return repository() / "envs" / f"{environment}.lock"


def laid_over(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key; anything else of ``over``, lists too, replaces what ``base`` has."""
    merged = {
        key: laid_over(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict)
        else value
        for key, value in over.items()
    }
    return {**base, **merged}


def read_yaml(path: Path) -> Any:
    """A YAML file's data; raises StudyError that names the line if it can't be read."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise StudyError(path, str(error), "correct the file at the place named above") from error
