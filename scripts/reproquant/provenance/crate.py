"""A study as a Provenance Run Crate 0.5 (RO-Crate 1.1): for readers who don't have this program.

The crate holds the results, the records and the workflow. Weights and binaries
are described by digest, and by address where they have one, unless they are
asked for. So is what published results have by digest only.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from reproquant.errors import FormatError
from reproquant.files import repository, sha256_file, write_json
from reproquant.provenance.artifacts import Artifact, artifacts
from reproquant.provenance.digests import Digests
from reproquant.provenance.evidence import Evidence
from reproquant.provenance.graph import PUBLISHED
from reproquant.provenance.new_folder import new_folder
from reproquant.provenance.published import absent, weights_and_binaries
from reproquant.provenance.reading import Read
from reproquant.provenance.root import NAME as ROOT
from reproquant.provenance.sign import SIGNATURE
from reproquant.recipe import code, workflow_pins
from reproquant.stages import STAGES
from reproquant.study import Study

CONTEXT = [
    "https://w3id.org/ro/crate/1.1/context",
    {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"},
]
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/provenance/0.5": ("Provenance Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
LICENCE = "https://spdx.org/licenses/Apache-2.0"
WORKFLOW = ("Snakefile", "config.yaml", "LICENSE", "workflow", "scripts", "envs", "profiles")
MEDIA = {
    ".json": "application/json", ".html": "text/html", ".md": "text/markdown", ".py": "text/x-python",
    ".gguf": "application/octet-stream",
}  # fmt: skip

Entity = dict[str, Any]


def export(results: Path, target: Path, with_weights: bool = False) -> None:
    """Write the crate of a sealed study into the folder ``target``, which must not exist.

    Raises FormatError if it exists, the study isn't sealed, a record or a file is missing, or a stage has
    no program in this checkout; and for published results if their weights are wanted.
    """
    evidence = Evidence.gather(results, Study.load(results / "study.json"), Digests())
    if evidence.root is None or len(evidence.believed()) < len(evidence.artifacts):
        raise FormatError(results, "only a sealed and complete study can be exported", "reproquant audit")
    runs = _runs(evidence)
    withheld = absent(evidence)
    if with_weights and withheld:
        raise FormatError(results, "published results have no weights", "leave out --with-weights")
    crate = _Crate(evidence, runs, withheld, with_weights)
    with new_folder(target) as folder:
        for name in crate.shipped:
            _copy(results / name, folder / name)
        for name in WORKFLOW:
            _copy(repository() / name, folder / name)
        graph = list(crate.graph(folder))
        write_json(folder / "ro-crate-metadata.json", {"@context": CONTEXT, "@graph": graph})


Runs = list[tuple[Artifact, Read]]
"""Each artifact with its record, the report's last."""


def _runs(evidence: Evidence) -> Runs:
    """Artifacts by the options of their programs; published results take options and order from today's."""
    runs = evidence.believed()
    for artifact, _ in runs:
        if artifact.stage not in STAGES:
            what = f"it was made by the stage {artifact.stage}, which this checkout hasn't got"
            raise FormatError(artifact.main, what, "export with the checkout that made it")
    if not (evidence.results / PUBLISHED).is_file():
        return runs
    today = {artifact.main: artifact for artifact in artifacts(evidence.study)}
    runs.sort(key=lambda run: [*today].index(run[0].main) if run[0].main in today else -1)
    return [(_with_options(artifact, today.get(artifact.main, artifact)), read) for artifact, read in runs]


def _with_options(artifact: Artifact, today: Artifact) -> Artifact:
    """A published artifact with the options that today's program is given the same files by."""
    inputs = [(option or "input", path) for option, path in today.inputs if path in artifact.needs]
    known = {path for _, path in inputs}
    inputs += [("input", path) for path in artifact.needs if path not in known]
    own = {*artifact.outputs.values()}
    outputs = {option: path for option, path in today.outputs.items() if path in own}
    outputs |= {path: path for path in sorted(own - {*outputs.values()})}
    return replace(artifact, inputs=tuple(inputs), outputs=outputs)


class _Crate:
    """The entities of one study."""

    def __init__(
        self, evidence: Evidence, runs: Runs, withheld: Mapping[str, int], with_weights: bool
    ) -> None:
        self._evidence = evidence
        self._runs = runs
        self._withheld = withheld
        self._ids: dict[str, str] = {}
        outputs = [name for artifact, _ in self._runs for name in artifact.outputs.values()]
        self._listed = {
            evidence.name(path): (name, sha256)
            for name, listing in evidence.listings.items()
            for path, sha256 in listing.digests.items()
        }
        heavy = dict.fromkeys([*weights_and_binaries(evidence), *withheld])
        beside = ["study.json", ROOT, *evidence.records]
        if (evidence.results / SIGNATURE).is_file():
            beside.append(SIGNATURE)
        light = [name for name in outputs if name not in heavy] + beside
        self.shipped = [*light, *(heavy if with_weights else ())]
        for name in (*light, *heavy):
            self._ids[name] = name if name in self.shipped else self._address(name)

    def graph(self, target: Path) -> Iterator[Entity]:
        """Every entity, the descriptor and the root first."""
        names: dict[str, list[str]] = {}
        for name, id in self._ids.items():
            names.setdefault(id, []).append(name)
        files = [self._file(id, called) for id, called in names.items()]
        stages = list(self._stage_entities())
        code = [path.relative_to(target).as_posix() for name in WORKFLOW for path in _walk(target / name)]
        known = {"Snakefile", *(entity["@id"] for entity in stages)}
        others = [_code(name) for name in code if name not in known]
        actions, run = list(self._actions()), self._run()
        parts = [*(entity["@id"] for entity in files), *code]
        yield _descriptor()
        yield self._root(run, parts, [one["@id"] for one in actions if one["@type"] == "CreateAction"])
        yield {"@id": LICENCE, "@type": "CreativeWork", "name": "Apache License 2.0", "url": LICENCE}
        for id, (name, version) in PROFILES.items():
            yield {"@id": id, "@type": "CreativeWork", "name": name, "version": version}
        yield from (self._workflow(), *_engine(), run, self._organized(run))
        yield from (*files, *stages, *others, *actions)

    def _root(self, run: Entity, parts: list[str], actions: list[str]) -> Entity:
        study = self._evidence.study.name
        return {
            "@id": "./",
            "@type": "Dataset",
            "name": f"Study {study}",
            "description": f"Artifacts, measurements and report of the study {study}, and how each was made",
            "datePublished": run["endTime"],
            "license": {"@id": LICENCE},
            "conformsTo": _refs(PROFILES),
            "mainEntity": {"@id": "Snakefile"},
            "hasPart": _refs(parts),
            "mentions": _refs([run["@id"], *actions]),
        }

    def _file(self, id: str, called: list[str]) -> Entity:
        """A file of the results; those that aren't shipped and have one digest are one, with more names."""
        name, *others = called
        path = self._evidence.results / name
        size = self._withheld[name] if name in self._withheld else path.stat().st_size
        entity: Entity = {
            "@id": id,
            "@type": "File",
            "name": name,
            **({"alternateName": others} if others else {}),
            "sha256": self._sha256(name),
            "contentSize": str(size),
            "encodingFormat": MEDIA.get(path.suffix, "application/octet-stream"),
        }
        parameters = [one for one, names in self._parameters().items() if {*names} & {*called}]
        if parameters:
            entity["exampleOfWork"] = _refs(parameters)
        return entity

    def _sha256(self, name: str) -> str:
        if name in self._listed:
            return self._listed[name][1]
        return self._evidence.promised.get(name) or sha256_file(self._evidence.results / name)

    def _address(self, name: str) -> str:
        """Where a file that isn't shipped can be had, or its digest as a URI (RFC 6920)."""
        owner = self._listed.get(name, ("", ""))[0]
        source = (
            (self._evidence.json(owner) or {}).get("source", {}) if owner == "model/manifest.json" else {}
        )
        if source.get("kind") == "hub":
            inside = name.split("/", 2)[2]
            return f"https://huggingface.co/{source['repository']}/resolve/{source['revision']}/{inside}"
        digest = base64.urlsafe_b64encode(bytes.fromhex(self._sha256(name))).decode().rstrip("=")
        return f"ni:///sha-256;{digest}"

    def _parameters(self) -> dict[str, list[str]]:
        """The files that were given for each option of each stage's program, and those of the workflow."""
        found: dict[str, list[str]] = {
            "#study": ["study.json"],
            "#report": list(self._runs[-1][0].outputs.values()),
        }
        for artifact, _ in self._runs:
            for option, name in (*artifact.inputs, *artifact.outputs.items()):
                files = found.setdefault(f"#{artifact.stage}-{option}", [])
                files += [name] if name not in files else []
        return found

    def _stage_entities(self) -> Iterator[Entity]:
        """Each stage: its program, its step, and the parameters."""
        for id, names in self._parameters().items():
            yield {
                "@id": id,
                "@type": "FormalParameter",
                "name": id[1:],
                "additionalType": "File",
                "conformsTo": {"@id": "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"},
                "workExample": _refs(self._ids[name] for name in names),
            }
        for position, stage in enumerate(self._stages()):
            of_stage = [artifact for artifact, _ in self._runs if artifact.stage == stage]
            taken = dict.fromkeys(option for one in of_stage for option, _ in one.inputs)
            given = dict.fromkeys(option for one in of_stage for option in one.outputs)
            yield {
                "@id": f"scripts/{stage}.py",
                "@type": ["File", "SoftwareSourceCode"],
                "name": stage,
                "input": _refs(f"#{stage}-{option}" for option in taken),
                "output": _refs(f"#{stage}-{option}" for option in given),
            }
            yield {
                "@id": f"#step-{stage}",
                "@type": "HowToStep",
                "name": stage,
                "position": str(position),
                "workExample": {"@id": f"scripts/{stage}.py"},
            }

    def _stages(self) -> list[str]:
        return list(dict.fromkeys(artifact.stage for artifact, _ in self._runs))

    def _workflow(self) -> Entity:
        return {
            "@id": "Snakefile",
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
            "name": "reproquant",
            "description": self._age(),
            "programmingLanguage": {"@id": "#snakemake-language"},
            "license": {"@id": LICENCE},
            "conformsTo": {"@id": "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"},
            "input": _refs(["#study"]),
            "output": _refs(["#report"]),
            "hasPart": _refs(f"scripts/{stage}.py" for stage in self._stages()),
            "step": _refs(f"#step-{stage}" for stage in self._stages()),
        }

    def _age(self) -> str:
        """Whether the workflow in the crate, which is the checkout's, is the one that made the results."""
        recorded = {
            (name, sha256, artifact.stage)
            for artifact, read in self._runs
            for name, sha256 in read.recipe["code"].items()
        }
        others = {name for name, sha256, stage in recorded if code(stage).get(name) != sha256}
        if not others:
            return "The workflow, with the code that made the results"
        return (
            "The workflow as it was when the crate was written; these files of its code differ from those "
            f"that made the results, whose digests are in the records: {', '.join(sorted(others))}"
        )

    def _actions(self) -> Iterator[Entity]:
        for artifact, read in self._runs:
            started, finished = read.times
            yield {
                "@id": f"#run-{artifact.main}",
                "@type": "CreateAction",
                "name": " ".join(["run", artifact.stage, *artifact.wildcards.values()]),
                "instrument": {"@id": f"scripts/{artifact.stage}.py"},
                "object": _refs(self._ids[name] for name in artifact.needs),
                "result": _refs(self._results(artifact)),
                "startTime": started,
                "endTime": finished,
                "subjectOf": {"@id": artifact.record},
            }
            yield {
                "@id": f"#control-{artifact.main}",
                "@type": "ControlAction",
                "name": f"orchestrate {artifact.stage}",
                "instrument": {"@id": f"#step-{artifact.stage}"},
                "object": {"@id": f"#run-{artifact.main}"},
            }

    def _results(self, artifact: Artifact) -> list[str]:
        listed = [name for name, (owner, _) in self._listed.items() if owner == artifact.main]
        return [self._ids[name] for name in (*artifact.outputs.values(), *listed)]

    def _run(self) -> Entity:
        times = [read.times for _, read in self._runs]
        return {
            "@id": "#run",
            "@type": "CreateAction",
            "name": f"run of the study {self._evidence.study.name}",
            "instrument": {"@id": "Snakefile"},
            "object": _refs(["study.json"]),
            "result": _refs(self._runs[-1][0].outputs.values()),
            "startTime": min(started for started, _ in times),
            "endTime": max(finished for _, finished in times),
        }

    def _organized(self, run: Entity) -> Entity:
        return {
            "@id": "#organized",
            "@type": "OrganizeAction",
            "name": "run of Snakemake",
            "instrument": {"@id": "#snakemake"},
            "object": _refs(f"#control-{artifact.main}" for artifact, _ in self._runs),
            "result": {"@id": run["@id"]},
            "startTime": run["startTime"],
            "endTime": run["endTime"],
        }


def _descriptor() -> Entity:
    return {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": _refs(
            ["https://w3id.org/ro/crate/1.1", "https://w3id.org/workflowhub/workflow-ro-crate/1.0"]
        ),
    }


def _engine() -> Iterator[Entity]:
    """Snakemake, as a language and as the program that ran."""
    shared = {"name": "Snakemake", "url": {"@id": "https://snakemake.github.io"}}
    version = workflow_pins()["snakemake"]
    yield {"@id": "#snakemake-language", "@type": "ComputerLanguage", **shared, "version": version}
    yield {"@id": "#snakemake", "@type": "SoftwareApplication", **shared, "softwareVersion": version}


def _refs(ids: Iterable[str]) -> list[dict[str, str]] | dict[str, str]:
    """References to entities, each once; a single one stands without a list, as RO-Crate wants it."""
    found = [{"@id": id} for id in dict.fromkeys(ids)]
    return found[0] if len(found) == 1 else found


def _code(name: str) -> Entity:
    return {
        "@id": name,
        "@type": "File",
        "name": name,
        "encodingFormat": MEDIA.get(Path(name).suffix, "text/plain"),
    }


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source, target, ignore=ignored)
    else:
        shutil.copy2(source, target)


def _walk(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for folder, _, names in os.walk(path):
        yield from (Path(folder, name) for name in sorted(names))
