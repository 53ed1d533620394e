"""Recipes: all that a stage's result depends on besides its input files.

A recipe is JSON: the stage's name, its slice of the study, the digest of every
module that its code can reach, the digests of the locks and data files it uses
(or of an image, or of what an external Python has installed), the pinned versions of
the packages it computes with. Its own digest is the one param that Snakemake watches. Code is
compared as syntax, so formatting, comments and docstrings don't count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from reproquant import external
from reproquant.errors import StudyError
from reproquant.files import digest_of, repository, sha256_file, sha256_text
from reproquant.stages import STAGES
from reproquant.study import External, InContainer, Study, lock_path

MACHINERY = frozenset(
    f"reproquant.{name}"
    for name in ("program", "stage", "stages", "recipe", "study", "provenance", "provenance.record", "errors")
)
"""Modules that decide when a stage runs and what is written about it, never the bytes it makes."""

DATA_SUFFIXES = (".yaml", ".json", ".txt", ".j2", ".css")


def recipe(
    stage: str, study: Study, frozen: Mapping[str, str] | None = None, /, **wildcards: str
) -> dict[str, Any]:
    """The recipe of ``stage`` in ``study`` as JSON data.

    ``wildcards`` are those of the rule, such as the quant type or the subject.
    ``frozen`` gives digests of external environments by name; those that it
    doesn't name are asked what they have installed.
    """
    definition = STAGES[stage]
    pins = workflow_pins()
    return {
        "stage": stage,
        "wildcards": wildcards,
        "study": definition.slice(study, **wildcards),
        "code": code(stage),
        "locks": {
            name: _environment_digest(study, name, frozen or {})
            for name in definition.locks(study, **wildcards)
        },
        "packages": {name: pins[name] for name in definition.packages},
        "files": {name: _file_digest(repository() / name) for name in definition.files(study, **wildcards)},
    }


def code(stage: str) -> dict[str, str]:
    """The digest of each file of the project that a stage's program can reach."""
    roots = (_script(stage), *map(_module_file, STAGES[stage].modules))
    return _closure(tuple(path for path in roots if path))


def recipe_digest(stage: str, study: Study, **wildcards: str) -> str:
    """The digest that goes into the rule's param."""
    return digest_of(recipe(stage, study, **wildcards))


@lru_cache
def workflow_pins() -> dict[str, str]:
    """Package name to exact version in the workflow's own lock."""
    text = lock_path("workflow").read_text(encoding="utf-8")
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", text, re.MULTILINE))


def _environment_digest(study: Study, name: str, frozen: Mapping[str, str]) -> str:
    """The digest of a lock or an image, or of what an external Python has installed."""
    role = study.environments.role(name)
    chosen = study.environments.of(role)
    if isinstance(chosen, External):
        return frozen.get(name) or external.digest(role, chosen)
    if isinstance(chosen, InContainer):
        return chosen.container.image.rpartition("@sha256:")[2]
    return _file_digest(lock_path(name))


def _script(stage: str) -> Path:
    return repository() / "scripts" / f"{stage}.py"


@lru_cache
def _closure(roots: tuple[Path, ...]) -> dict[str, str]:
    """Digest of each file of the project that the roots can reach by static imports."""
    found: dict[Path, str] = {}
    queue = list(roots)
    while queue:
        path = queue.pop()
        if path not in found:
            digest, needs = _read(path)
            found[path] = digest
            queue.extend(needs)
    scripts = repository() / "scripts"
    return {str(path.relative_to(scripts)): digest for path, digest in sorted(found.items())}


@lru_cache
def _read(path: Path) -> tuple[str, tuple[Path, ...]]:
    """A file's digest and the project files it names: imports, and data beside it."""
    if path.suffix != ".py":
        return sha256_file(path), ()
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    needs = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            needs += [file for alias in node.names for file in _module_files(alias.name)]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            needs += _module_files(node.module)
            needs += [file for alias in node.names for file in _module_files(f"{node.module}.{alias.name}")]
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.endswith(DATA_SUFFIXES)
        ):
            needs += [file for file in [path.parent / node.value] if len(node.value) < 80 and file.is_file()]
    return sha256_text(ast.dump(_without_docstrings(tree))), tuple(needs)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return tree


def _module_files(name: str) -> list[Path]:
    """The files that importing a module of this project runs: packages on the way, and itself."""
    parts = name.split(".")
    if parts[0] != "reproquant":
        return []
    names = {".".join(parts[: end + 1]) for end in range(len(parts))} - MACHINERY
    return [file for file in map(_module_file, sorted(names)) if file]


@lru_cache
def _module_file(name: str) -> Path | None:
    base = repository() / "scripts" / Path(*name.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


@lru_cache
def _file_digest(path: Path) -> str:
    try:
        return sha256_file(path)
    except OSError as error:
        raise StudyError(
            path, f"the stage needs this file: {error.strerror}", "restore it, or correct the study"
        ) from error
