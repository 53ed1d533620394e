"""What an audit goes by: the study, the root, the records, and the files that artifacts list."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from reproquant.provenance import installed
from reproquant.provenance.artifacts import Artifact, artifacts
from reproquant.provenance.digests import Digests
from reproquant.provenance.graph import PUBLISHED, artifacts_then, record_names
from reproquant.provenance.reading import Read, read_json, read_record, read_root
from reproquant.provenance.root import Root
from reproquant.study import Study

ENVIRONMENT_FACTS = frozenset({"name", "python", "lock_sha256", "installed_sha256"})


@dataclass(frozen=True)
class Listing:
    """The files that an artifact lists, by absolute path, and the folder that holds nothing else."""

    digests: dict[Path, str]
    folder: Path


@dataclass(frozen=True)
class Evidence:
    """A results directory as it says it is; ``records`` has None for a record that is missing.

    The report is the last of the artifacts.
    """

    results: Path
    study: Study
    digests: Digests
    artifacts: tuple[Artifact, ...]
    root: Root | None
    records: dict[str, Read | None]

    @classmethod
    def gather(cls, results: Path, study: Study, digests: Digests) -> Evidence:
        """Read root and records; published results go by their own graph, those of a run by today's."""
        root = read_root(results)
        if (results / PUBLISHED).is_file():
            records = {name: read_record(results / name) for name in record_names(results, root)}
            return cls(results, study, digests, artifacts_then(records, root), root, records)
        expected = artifacts(study)
        records = {artifact.record: read_record(results / artifact.record) for artifact in expected}
        return cls(results, study, digests, expected, root, records)

    def believed_record(self, name: str) -> Read | None:
        """A record if it can be believed: it is one, and the root, where there is one, names it."""
        read = self.records.get(name)
        if read is None or read.record is None:
            return None
        return read if self.root is None or self.root.records.get(name) == read.sha256 else None

    def believed(self) -> list[tuple[Artifact, Read]]:
        """The artifacts whose records can be believed, with these."""
        pairs = [(artifact, self.believed_record(artifact.record)) for artifact in self.artifacts]
        return [(artifact, read) for artifact, read in pairs if read is not None]

    @cached_property
    def promised(self) -> dict[str, str]:
        """The sha256 of each file, as its own believed record says, else one of what was made from it."""
        promised: dict[str, str] = {}
        for _, read in self.believed():
            promised |= {name: sha256 for name, (sha256, _) in read.dependencies.items()}
        for _, read in self.believed():
            promised |= read.subjects
        return promised

    def intact(self, name: str) -> bool:
        """Whether nothing is known against a file's bytes."""
        return self.promised.get(name) in (None, self.digests.sha256(self.results / name))

    @cached_property
    def listings(self) -> dict[str, Listing]:
        """The manifests and the build by name; one that can't be read isn't among them."""
        found = {artifact.main: self._listing(artifact.main) for artifact in self.artifacts}
        return {name: listing for name, listing in found.items() if listing is not None}

    @cached_property
    def environments(self) -> dict[str, installed.Installed | None]:
        """What the store has of each environment, by the file that describes it."""
        names = [artifact.main for artifact in self.artifacts if artifact.stage == "build_environment"]
        facts = {name: self.json(name) for name in names}
        return {
            name: installed.read(installed.folder(data))
            for name, data in facts.items()
            if isinstance(data, dict) and data.keys() >= ENVIRONMENT_FACTS
        }

    def json(self, name: str) -> Any:
        """The data of a JSON file of the results; None if there is none that can be read."""
        return read_json(self.results / name)

    def name(self, path: Path) -> str:
        """A path as findings give it."""
        return os.path.relpath(path, self.results)

    def _listing(self, name: str) -> Listing | None:
        data = self.json(name) if name.endswith(".json") else None
        here = (self.results / name).parent
        try:
            match data:
                case {"directory": str(folder), "files": list(files)}:
                    pairs = {here / folder / file["path"]: file["sha256"] for file in files}
                    return Listing(pairs, here / folder)
                case {"binaries": dict(binaries)}:
                    pairs = {here / "bin" / tool: facts["sha256"] for tool, facts in binaries.items()}
                    return Listing(pairs, here / "bin")
        except (KeyError, TypeError):
            return None
        return None
