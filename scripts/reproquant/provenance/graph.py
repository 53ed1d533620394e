"""The artifacts of published results: those of the workflow that made them, as their records tell.

A later workflow may have further stages and inputs, so today's table (``artifacts``) can't say what
results that are kept must have. Their own root and records can, and nothing has to be written down beside
them: the root, which a signature can cover, names every record, and a record what its stage took and
made, its inputs with the digests of their records. So an artifact that is gone is missed by
the root, and if that was written anew without it, by everything that was made from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from reproquant.provenance.artifacts import REPORT, Artifact
from reproquant.provenance.reading import Read
from reproquant.provenance.root import Root

PUBLISHED = "published.json"
"""The file that tells published results from those of a run."""

SUFFIX = ".prov.json"


def record_names(results: Path, root: Root | None) -> list[str]:
    """The records that there must be: what the root names, what lies there, and, last, the report's.

    Hidden folders, such as a verification's scratch, are no part of the results.
    """
    found = [path.relative_to(results) for path in results.rglob(f"*{SUFFIX}")]
    there = {path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts)}
    named = set(root.records) if root else set()
    return [*sorted((there | named) - {REPORT + SUFFIX}), REPORT + SUFFIX]


def artifacts_then(records: Mapping[str, Read | None], root: Root | None) -> tuple[Artifact, ...]:
    """The artifact of each record, in the order of the records.

    Records tell no options, so inputs have none, and outputs other than the main one go by their names.
    Of a record that is missing or isn't the sealed one, the outputs are known that others were made from.
    """
    sealed = root.records if root else {}
    told = {
        name: read
        for name, read in records.items()
        if read and read.record and sealed.get(name, read.sha256) == read.sha256
    }
    inputs = [item for read in told.values() for item in read.dependencies.items()]

    def artifact(name: str) -> Artifact:
        if name in told:
            return _told(name, told[name])
        known = {file for file, (_, sha256) in inputs if sha256 and sha256 == sealed.get(name)}
        return Artifact("", (), _outputs(name, known))

    return tuple(map(artifact, records))


def _told(name: str, read: Read) -> Artifact:
    wildcards = read.recipe.get("wildcards")
    return Artifact(
        str(read.recipe.get("stage")),
        tuple(("", file) for file in sorted(read.dependencies)),
        _outputs(name, read.subjects),
        wildcards if isinstance(wildcards, dict) else {},
    )


def _outputs(record: str, files: Iterable[str]) -> dict[str, str]:
    """The output that the record stands beside, and the others."""
    main = record.removesuffix(SUFFIX)
    return {"output": main, **{file: file for file in sorted(files) if file != main}}
