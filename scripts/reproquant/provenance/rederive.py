"""Make an artifact again from its recorded inputs, somewhere else, and compare bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from pydantic import BaseModel, ConfigDict

from reproquant.errors import ReproquantError, ToolError
from reproquant.files import repository, sha256_file, store
from reproquant.provenance.artifacts import Artifact, artifacts
from reproquant.provenance.digests import Digests
from reproquant.provenance.evidence import Evidence
from reproquant.provenance.graph import PUBLISHED
from reproquant.recipe import recipe_digest
from reproquant.study import Study, read_yaml

SHARED = frozenset({"environments", "sources", "downloads", "builds"})
"""Folders of the store that a stage may use as they are; finished results are never among them."""


class Rule(BaseModel):
    """What can be expected of a stage; the keys are explained in rederive.yaml."""

    model_config = ConfigDict(extra="forbid")

    reproducible: bool
    reason: str
    compare: Literal["outputs", "main", "listed"] = "outputs"
    anew: list[str] = []


@dataclass(frozen=True)
class Comparison:
    """One file, made twice."""

    file: str
    recorded: str
    again: str

    @property
    def same(self) -> bool:
        return self.recorded == self.again

    def __str__(self) -> str:
        if self.same:
            return f"the same: {self.file}: sha256 {self.recorded}"
        return f"different: {self.file}: recorded sha256 {self.recorded}, made again {self.again}"


def rules() -> dict[str, Rule]:
    """The table of stages."""
    data = read_yaml(Path(__file__).with_name("rederive.yaml"))
    return {stage: Rule.model_validate(entry) for stage, entry in data.items()}


def chosen(study: Study, stage: str, which: str | None) -> Artifact:
    """The artifact of a stage; ``which`` is its wildcard's value where the stage makes several.

    Raises ReproquantError for a stage that the study doesn't have or an ambiguous choice.
    """
    of_study = artifacts(study)
    of_stage = [artifact for artifact in of_study if artifact.stage == stage]
    if not of_stage:
        stages = dict.fromkeys(artifact.stage for artifact in of_study)
        raise ReproquantError(stage, "the study has no such stage", f"use one of {', '.join(stages)}")
    values = {value: artifact for artifact in of_stage for value in artifact.wildcards.values()}
    if which is None and len(of_stage) == 1:
        return of_stage[0]
    if which in values:
        return values[which]
    if not values:
        raise ReproquantError(stage, "it makes one artifact", "leave out --which")
    reason = f"it makes none for '{which}'" if which else "it makes several artifacts"
    raise ReproquantError(stage, reason, f"give --which one of {', '.join(values)}")


def rederive(results: Path, artifact: Artifact, threads: int, log: Path) -> list[Comparison]:
    """Run an artifact's stage again on its inputs and compare what its rule names.

    The inputs are linked, not copied; nothing in ``results`` is written but its scratch. Raises
    ReproquantError for a stage that can't give the same bytes or whose inputs aren't here,
    and ToolError if it fails.
    """
    rule = rules()[artifact.stage]
    if not rule.reproducible:
        raise ReproquantError(
            f"stage {artifact.stage}", f"it can't give the same bytes: {rule.reason}", "audit its result"
        )
    results = results.resolve()
    scratch = results / ".scratch"
    scratch.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=scratch, prefix="again-") as folder:
        again = Path(folder) / results.name
        _link_inputs(results, artifact, again)
        _run(again, artifact, threads, log.resolve(), _store(rule, Path(folder) / "store"))
        return _compare(results, again, artifact, rule)


def _link_inputs(results: Path, artifact: Artifact, again: Path) -> None:
    """The study, every record, the inputs, and what these list, but for the report, below ``again``."""
    evidence = Evidence.gather(results, Study.load(results / "study.json"), Digests())
    names, beside = {"study.json", *artifact.needs}, set(evidence.records)
    if artifact.stage == "report":
        beside |= {name for one in evidence.artifacts for name in one.outputs.values()}
    else:
        listings = [evidence.listings[name] for name in artifact.needs if name in evidence.listings]
        names |= {evidence.name(path) for listing in listings for path in listing.digests}
    if missing := sorted(name for name in names if not (results / name).is_file()):
        raise ReproquantError(
            results / missing[0],
            f"{artifact.main} is made from it, and it isn't here",
            "verify it where the whole study lies"
            if (results / PUBLISHED).is_file()
            else "reproquant audit tells how it is made again",
        )
    for name in (names | beside) - set(artifact.outputs.values()) - {artifact.record}:
        if (results / name).is_file():
            (again / name).parent.mkdir(parents=True, exist_ok=True)
            _link((results / name).resolve(), again / name)


def _link(source: str | Path, target: str | Path) -> None:
    """A hard link, which a record can name; a symbolic one to a file on another disk."""
    try:
        os.link(source, target)
    except OSError:
        os.symlink(source, target)


def _store(rule: Rule, fresh: Path) -> Path:
    """A store without finished results and without what the stage must make anew; the rest is the common one.

    Sources are linked file by file: a compiler that saw the way through a link
    could write another path into what it makes.
    """
    fresh.mkdir()
    for name in sorted(SHARED - set(rule.anew)):
        if name == "sources" and (store() / name).is_dir():
            shutil.copytree(store() / name, fresh / name, symlinks=True, copy_function=_link)
        elif (store() / name).is_dir():
            (fresh / name).symlink_to(store() / name)
    return fresh


def _run(again: Path, artifact: Artifact, threads: int, log: Path, place: Path) -> None:
    study = Study.load(again / "study.json")
    words: list[object] = [sys.executable, repository() / "scripts" / f"{artifact.stage}.py"]
    words += ["--study", again / "study.json", "--log", log]
    words += ["--recipe", recipe_digest(artifact.stage, study, **artifact.wildcards)]
    for option in dict.fromkeys(option for option, _ in artifact.inputs):
        words += [f"--{option}", *(again / path for name, path in artifact.inputs if name == option)]
    for option, path in artifact.outputs.items():
        if option not in ("html", "markdown", "claims"):
            words += [f"--{option}", again / path]
    for name, value in artifact.wildcards.items():
        words += [f"--{name}", value]
    if artifact.stage in ("build_llama_cpp", "quantize_gguf", "evaluate_quality"):
        words += ["--threads", threads]
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, "REPROQUANT_STORE": str(place), "PYTHONPATH": str(repository() / "scripts")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ToolError(f"stage {artifact.stage}", done.stderr.strip() or "it failed", f"read its log, {log}")


def _compare(results: Path, again: Path, artifact: Artifact, rule: Rule) -> list[Comparison]:
    """What the results promise against what was made; the bytes of the results are the audit's affair."""
    evidence = Evidence.gather(results, Study.load(results / "study.json"), Digests())
    if rule.compare == "listed":
        listed = evidence.listings[artifact.main].digests
        promised = {evidence.name(path): sha256 for path, sha256 in listed.items()}
    else:
        names = [artifact.main] if rule.compare == "main" else artifact.outputs.values()
        promised = {name: evidence.promised.get(name, "unknown") for name in names}
    return [Comparison(name, sha256, sha256_file(again / name)) for name, sha256 in promised.items()]
