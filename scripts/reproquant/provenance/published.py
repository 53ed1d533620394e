"""Finished results to be kept and shown: everything but what is large, which stands there by digest.

Large are weights and binaries, and a report's page of more than ``PAGE_BYTES``: report.md and
report.json hold the same figures. ``published.json`` in such a folder lists what was withheld. An
audit takes that list for a file only where a record or a manifest promises the same digest, and
for nothing else: a measurement that is gone is missing.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from reproquant.errors import FormatError
from reproquant.files import write_json
from reproquant.provenance.artifacts import artifacts
from reproquant.provenance.digests import Digests
from reproquant.provenance.evidence import Evidence
from reproquant.provenance.graph import PUBLISHED as NAME
from reproquant.provenance.new_folder import new_folder
from reproquant.provenance.reading import read_root
from reproquant.provenance.root import NAME as ROOT
from reproquant.provenance.sign import SIGNATURE
from reproquant.study import Study

BENCHMARKS = "benchmarks/**/*.tsv"
WEIGHTS = ".gguf"
PAGE = "report/index.html"
PAGE_BYTES = 1 << 20


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Withheld(Part):
    """A file that isn't here; ``path`` is relative to the results directory."""

    path: str
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Publication(Part):
    """published.json."""

    withheld: tuple[Withheld, ...]

    @property
    def bytes(self) -> int:
        """The size of all that is withheld."""
        return sum(file.bytes for file in self.withheld)


def publish(results: Path, target: Path) -> Publication:
    """Copy a sealed study's results into the folder ``target``, which must not exist.

    Digests of what is withheld are taken from the records; nothing large is read. Raises FormatError if
    the folder exists, the study is published already or isn't sealed, or a file or record is missing.
    """
    if (results / NAME).is_file():
        raise FormatError(results, "it is published already", "copy the folder")
    evidence = Evidence.gather(results, Study.load(results / "study.json"), Digests())
    if evidence.root is None or len(evidence.believed()) < len(evidence.artifacts):
        raise FormatError(results, "only a sealed and complete study can be published", "reproquant audit")
    heavy = withholdable(evidence)
    if (page := results / PAGE).is_file() and page.stat().st_size <= PAGE_BYTES:
        del heavy[PAGE]
    made = {name for artifact in evidence.artifacts for name in artifact.outputs.values()}
    names = {"study.json", ROOT, *evidence.records, *(made - heavy.keys())}
    names |= {path.relative_to(results).as_posix() for path in results.glob(BENCHMARKS)}
    if (results / SIGNATURE).is_file():
        names.add(SIGNATURE)
    with new_folder(target) as folder:
        withheld = [
            Withheld(path=name, bytes=(results / name).stat().st_size, sha256=sha256)
            for name, sha256 in sorted(heavy.items())
        ]
        for name in sorted(names):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(results / name, folder / name)
        publication = Publication(withheld=tuple(withheld))
        write_json(folder / NAME, publication.model_dump(mode="json"))
    return publication


def weights_and_binaries(evidence: Evidence) -> dict[str, str]:
    """The large artifacts with the sha256 that their records or manifests promise."""
    listed = {
        evidence.name(path): sha256
        for listing in evidence.listings.values()
        for path, sha256 in listing.digests.items()
    }
    return {
        **{name: sha256 for name, sha256 in evidence.promised.items() if name.endswith(WEIGHTS)},
        **listed,
    }


def withholdable(evidence: Evidence) -> dict[str, str]:
    """Weights, binaries and the page with the sha256 that their records or manifests promise."""
    page = {PAGE: evidence.promised[PAGE]} if PAGE in evidence.promised else {}
    return {**page, **weights_and_binaries(evidence)}


def publication(results: Path) -> Publication | None:
    """What a results directory says of being published; None for the results of a run.

    Raises FormatError for a published.json that isn't one.
    """
    path = results / NAME
    if not path.is_file():
        return None
    try:
        return Publication.model_validate_json(path.read_bytes())
    except ValidationError as error:
        reason = f"it isn't a list of withheld files: {error.errors()[0]['msg']}"
        raise FormatError(path, reason, "put it back from a copy") from None


def absent(evidence: Evidence) -> dict[str, int]:
    """The files that needn't be there, withheld with the digest that was promised, and their bytes."""
    found = publication(evidence.results)
    if found is None:
        return {}
    promised = withholdable(evidence)
    return {file.path: file.bytes for file in found.withheld if promised.get(file.path) == file.sha256}


def made_since(results: Path) -> list[str]:
    """What today's workflow would make of the study of sound published results, and they don't have.

    A later stage, or one that somebody left out when all that follows was written anew.
    """
    root = read_root(results)
    today = artifacts(Study.load(results / "study.json"))
    return [one.main for one in today if root and one.record not in root.records]
