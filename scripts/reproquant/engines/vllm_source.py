"""What vLLM's own source says about GPUs: minimum capabilities and the words of its refusals.

Read as syntax out of an installed package or a wheel; nothing of vLLM is imported,
so neither torch nor a GPU is needed.
"""

from __future__ import annotations

import ast
import platform
import re
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from reproquant.engines.compatibility import table
from reproquant.engines.refusals import classify
from reproquant.errors import FormatError, ReproquantError
from reproquant.study import InContainer, Study
from reproquant.toolchain import container, environments
from reproquant.toolchain.interpreter import Interpreter

QUANTIZATION = "vllm/model_executor/layers/quantization/"
READ = re.compile(r"vllm/(config|model_executor/(model_loader|layers/quantization))\b.*\.py$")
METADATA = re.compile(r"vllm(_cpu)?-([^-/]+)\.dist-info/METADATA$")


class Contradicted(ReproquantError):
    """A vLLM says something else than what is written down about it."""


@dataclass(frozen=True)
class VllmSource:
    """``minimums``: quantization method to capability (75 is 7.5); ``schemes``: the same by class, for
    compressed-tensors, which decides for each layer; ``refusals``: sentences, "{}" for what is filled in."""

    version: str
    minimums: dict[str, int]
    schemes: dict[str, int]
    refusals: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """What was read as JSON data, and beside it what compatibility.yaml has of this version."""
        return {**asdict(self), "compared": [asdict(one) for one in compared(self)]}


@dataclass(frozen=True)
class Compared:
    """A quantization method's minimum capability as compatibility.yaml and as vLLM's source has it."""

    quantization: str
    table: int
    source: int | None


def read(where: Path) -> VllmSource:
    """Read ``where``, a wheel or a site-packages folder that holds vLLM.

    Raises FormatError if there is no vLLM in it, or one whose source isn't laid
    out as this reader knows it.
    """
    texts = dict(_texts(where))
    version = next((match[2] for name in texts if (match := METADATA.search(name))), None)
    try:
        trees = {name: ast.parse(text, name) for name, text in texts.items() if name.endswith(".py")}
    except SyntaxError as error:
        raise FormatError(
            where,
            f"this Python, {platform.python_version()}, can't parse {error.filename}: {error.msg}",
            "run it with the Python that this vLLM wants",
        ) from error
    classes = {name: value for tree in trees.values() for name, value in _class_minimums(tree)}
    registry = trees.get(f"{QUANTIZATION}__init__.py")
    methods = dict(_methods(registry)) if registry else {}
    minimums = {method: classes[name] for method, name in methods.items() if name in classes}
    refusals = sorted({words for tree in trees.values() for words in _refusals(tree)})
    if version is None or not minimums or not refusals:
        raise FormatError(
            where,
            "it holds no vLLM whose quantization methods and refusals can be found",
            "name a vLLM wheel or the site-packages folder that vLLM is installed in; if it is one, its "
            "source has moved and scripts/reproquant/engines/vllm_source.py must follow",
        )
    schemes = {name: value for name, value in classes.items() if name not in methods.values()}
    return VllmSource(version, minimums, schemes, tuple(refusals))


def installed(environment: Interpreter) -> Path:
    """The folder in which an environment's Python finds vLLM, which isn't imported for that.

    Raises FormatError if it finds none.
    """
    ask = "import importlib.util; print(importlib.util.find_spec('vllm').origin)"
    words = [str(environment.python), "-I", "-c", ask]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FormatError(environment.python, "it finds no package 'vllm'", "install vLLM in it")
    return Path(done.stdout.strip()).parent.parent


def of_study(study: Study, folder: Path, log: Path) -> Path:
    """Where the study's vLLM can be read; out of an image it is taken into ``folder`` first."""
    chosen = study.environments.vllm
    if not isinstance(chosen, InContainer):
        return installed(environments.provide(study, "vllm", log))
    wheel = folder / "vllm.whl"
    wheel.write_bytes(container.provide(chosen.container, log).wheel("vllm"))
    return wheel


def insist(source: VllmSource) -> None:
    """Raise Contradicted, with a sentence for each place, if the source contradicts the two tables."""
    if wrong := contradictions(source):
        raise Contradicted(
            f"vLLM {source.version}",
            " ".join(wrong),
            "correct compatibility.yaml or refusals.yaml in scripts/reproquant/engines: otherwise a refusal "
            "would be foretold wrongly, or taken for a failure",
        )


def compared(source: VllmSource) -> list[Compared]:
    """Each minimum that compatibility.yaml has for this version, beside what the source says."""
    version = source.version.partition("+")[0]
    rows = [row for row in table() if row.minimum is not None and version in SpecifierSet(row.vllm)]
    return [
        Compared(method, row.minimum, source.minimums.get(method))
        for row in rows
        for method in row.quantizations
        if row.minimum is not None
    ]


def contradictions(source: VllmSource) -> list[str]:
    """Where the source says something else than compatibility.yaml or refusals.yaml; a sentence each."""
    version = source.version.partition("+")[0]
    found = [
        f"{one.quantization}: compatibility.yaml says minimum {one.table}, vLLM {version} says {one.source}."
        for one in compared(source)
        if one.source != one.table
    ]
    for words in source.refusals:
        if classify("vllm", words.replace("{}", "70")) is None:
            found.append(f"refusals.yaml doesn't know the words “{words}” of vLLM {version}.")
    return found


def _texts(where: Path) -> Iterator[tuple[str, str]]:
    if where.is_dir():
        executor = where / "vllm/model_executor"
        wanted = [*where.glob("vllm/config*"), executor / "model_loader", executor / "layers/quantization"]
        paths = [file for path in wanted for file in ([path] if path.is_file() else path.rglob("*.py"))]
        for path in [*paths, *where.glob("vllm*.dist-info/METADATA")]:
            name = path.relative_to(where).as_posix()
            if READ.search(name) or METADATA.search(name):
                yield name, path.read_text(encoding="utf-8")
    elif zipfile.is_zipfile(where):
        with zipfile.ZipFile(where) as wheel:
            for name in wheel.namelist():
                if READ.search(name) or METADATA.search(name):
                    yield name, wheel.read(name).decode()


def _class_minimums(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Classes whose ``get_min_capability`` returns a number."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for function in node.body:
            if isinstance(function, ast.FunctionDef) and function.name == "get_min_capability":
                values = [part.value for part in ast.walk(function) if isinstance(part, ast.Return)]
                match values:
                    case [ast.Constant(value=int(minimum))]:
                        yield node.name, minimum


def _methods(registry: ast.Module) -> Iterator[tuple[str, str]]:
    """The method's name and its class, out of the dictionary that vLLM keeps them in."""
    for node in ast.walk(registry):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if (
                    isinstance(key, ast.Constant)
                    and isinstance(key.value, str)
                    and isinstance(value, ast.Name)
                ):
                    yield key.value, value.id


def _refusals(tree: ast.Module) -> Iterator[str]:
    """What is raised with a GPU's capability in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            words = "".join(_words(argument) for argument in node.exc.args)
            if "capability: " in words:
                yield words


def _words(node: ast.expr) -> str:
    """A text as it will read, with "{}" where a value goes in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_words(part) for part in node.values)
    return "{}"
