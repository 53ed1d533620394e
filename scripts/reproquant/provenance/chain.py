"""Checks of records: the root, each record, the links between them, and today's recipes."""

from __future__ import annotations

from collections.abc import Iterator

from reproquant.errors import StudyError
from reproquant.provenance.artifacts import Artifact
from reproquant.provenance.evidence import Evidence
from reproquant.provenance.findings import Finding, Kind, Remedies, missing
from reproquant.provenance.reading import Read
from reproquant.provenance.root import NAME
from reproquant.provenance.staleness import changes
from reproquant.recipe import recipe

UNSEALED = (
    "it isn't the record that was sealed: it was changed, comes from another run, or the run wasn't ended"
)


def root(evidence: Evidence, remedies: Remedies) -> Iterator[Finding]:
    """The root is there, whole, and of this study."""
    again = remedies.again(NAME)
    if not (evidence.results / NAME).is_file():
        yield missing(NAME, "without it a changed record that nothing was made from can't be told", again)
    elif evidence.root is None:
        yield Finding(Kind.TAMPERED, NAME, "its own digest doesn't fit it", "a root", "something else", again)
    elif odd := sorted(evidence.root.records.keys() ^ evidence.records.keys()):
        what = "it doesn't name exactly the records of this study"
        yield Finding(
            Kind.BROKEN,
            NAME,
            what,
            f"{len(evidence.records)} records",
            f"a difference in {', '.join(odd)}",
            again,
        )


def records(evidence: Evidence, remedies: Remedies) -> Iterator[Finding]:
    """Every record is there, is one, is the sealed one, and is of its artifact."""
    for artifact in evidence.artifacts:
        name, read = artifact.record, evidence.records[artifact.record]
        again = remedies.again(artifact.main)
        sealed = evidence.root.records.get(name) if evidence.root else None
        if read is None:
            yield missing(name, f"nothing tells how {artifact.main} was made", again)
        elif sealed and sealed != read.sha256:
            yield Finding(Kind.BROKEN, name, UNSEALED, sealed, read.sha256, again)
        elif read.record is None:
            yield Finding(Kind.BROKEN, name, "it is no record", "a record", "something else", again)
        else:
            yield from _of_its_artifact(artifact, read, again)


def _of_its_artifact(artifact: Artifact, read: Read, again: str) -> Iterator[Finding]:
    pairs = {
        "stage": (artifact.stage, read.recipe.get("stage")),
        "wildcards": (artifact.wildcards, read.recipe.get("wildcards")),
        "outputs": (sorted(artifact.outputs.values()), sorted(read.subjects)),
        "inputs": (artifact.needs, sorted(read.dependencies)),
    }
    for what, (wanted, found) in pairs.items():
        if wanted != found:
            yield Finding(
                Kind.BROKEN, artifact.record, f"it tells of other {what}", str(wanted), str(found), again
            )


def links(evidence: Evidence, remedies: Remedies) -> Iterator[Finding]:
    """What a believed record says of its inputs is what their own believed records say."""
    makers = {name: artifact for artifact in evidence.artifacts for name in artifact.outputs.values()}
    for artifact, read in evidence.believed():
        for name, (sha256, record_sha256) in read.dependencies.items():
            if name not in makers:
                what = f"it was made from {name}, and no record of this study tells how that was made"
                again = remedies.again(artifact.main)
                yield Finding(Kind.BROKEN, artifact.record, what, "a record", "none", again)
                continue
            own = evidence.believed_record(makers[name].record)
            if own is None:
                continue
            for what, found, wanted in (
                ("other bytes", sha256, own.subjects.get(name)),
                ("another record", record_sha256, own.sha256),
            ):
                if found != wanted:
                    yield Finding(
                        Kind.BROKEN,
                        artifact.record,
                        f"it was made from {name} with {what}",
                        str(wanted),
                        str(found),
                        remedies.again(artifact.main),
                    )


def stale(evidence: Evidence, remedies: Remedies) -> Iterator[Finding]:
    """Every believed record's recipe is what the checkout would plan today.

    What external Pythons hold isn't looked at here: ``contents.external_environments`` does that.
    """
    for artifact, read in evidence.believed():
        try:
            today = recipe(artifact.stage, evidence.study, read.recipe.get("locks"), **artifact.wildcards)
        except StudyError as error:
            yield Finding(Kind.STALE, artifact.main, error.reason, "a recipe", "none", error.remedy)
            continue
        for what, then, now in changes(read.recipe, today):
            yield Finding(
                Kind.STALE, artifact.main, f"{what} has changed since it was made", then, now, remedies.run
            )
