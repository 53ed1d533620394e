"""The root of a study: one file that names every record by digest.

Each record names the records of its inputs, so a record that something else was
made from can't change unnoticed. The records at the end of the chain have no
such witness, and a chain that is older as a whole is sound in itself; the root
is the witness of them all. It is a pure function of the records: the same records
give the same bytes, and a signature over it covers the study.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from reproquant.errors import FormatError
from reproquant.files import digest_of, sha256_file
from reproquant.provenance.artifacts import artifacts
from reproquant.study import Study

NAME = "root.json"


class Root(BaseModel):
    """The root file. ``sha256`` is the digest of the rest, so that damage to the root itself shows."""

    model_config = ConfigDict(extra="forbid", strict=True)

    study: str
    study_sha256: str
    records: dict[str, str]
    sha256: str

    @property
    def whole(self) -> bool:
        """Whether it is what was written."""
        return self.sha256 == digest_of(self.model_dump(exclude={"sha256"}))


def seal(results: Path) -> dict[str, Any]:
    """The root of a finished study as JSON data; raises FormatError if a record is missing."""
    study = Study.load(results / "study.json")
    names = sorted(artifact.record for artifact in artifacts(study))
    for name in names:
        if not (results / name).is_file():
            raise FormatError(
                results / name,
                "a study is sealed when every artifact has its record, and this one is missing",
                "run the workflow to its end",
            )
    body = {
        "study": study.name,
        "study_sha256": sha256_file(results / "study.json"),
        "records": {name: sha256_file(results / name) for name in names},
    }
    return {**body, "sha256": digest_of(body)}


def parse(content: bytes) -> Root | None:
    """The root that a file's bytes hold; none if they aren't a whole one, to the last blank."""
    try:
        root = Root.model_validate(json.loads(content))
    except ValueError:
        return None
    return root if root.whole and content == rendered(root.model_dump()) else None


def rendered(root: dict[str, Any]) -> bytes:
    """The bytes of a root file: those that ``files.write_json`` writes."""
    return (json.dumps(root, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()
