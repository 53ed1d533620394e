"""Checks of bytes: artifacts, the files that they list, environments, the report's numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reproquant import external
from reproquant.errors import StudyError
from reproquant.files import digest_of
from reproquant.provenance import installed
from reproquant.provenance.evidence import Evidence
from reproquant.provenance.figures import wrong_numbers
from reproquant.provenance.findings import Finding, Kind, Remedies, missing
from reproquant.study import External


def of_results(evidence: Evidence) -> set[Path]:
    """The files of the results directory that are compared."""
    made = {name for artifact in evidence.artifacts for name in artifact.outputs.values()}
    listed = {path for listing in evidence.listings.values() for path in listing.digests}
    return {evidence.results / name for name in made} | listed


def of_environments(evidence: Evidence) -> set[Path]:
    """The files of the store that are compared."""
    return {path for found in evidence.environments.values() if found for path in found.digests}


def files(evidence: Evidence, remedies: Remedies) -> Iterator[Finding]:
    """Every output is there and has the bytes that were recorded."""
    for artifact in evidence.artifacts:
        for name in artifact.outputs.values():
            yield from _compared(
                evidence,
                name,
                evidence.promised.get(name),
                "the study must have it",
                remedies.again(artifact.main),
            )


def listed(evidence: Evidence, remedies: Remedies) -> Iterator[Finding]:
    """Every file that an intact manifest or build.json lists is as listed, and nothing lies beside them."""
    for name, listing in evidence.listings.items():
        if not evidence.intact(name):
            continue
        again = remedies.again(name)
        for path, wanted in listing.digests.items():
            yield from _compared(evidence, evidence.name(path), wanted, f"{name} lists it", again)
        for path in _files_in(listing.folder):
            if path not in listing.digests:
                yield _foreign(evidence.name(path), f"{name} doesn't list it", again)


def environments(evidence: Evidence, remedies: Remedies) -> Iterator[Finding]:
    """Every environment is in the store, as its packages list it, and so are these lists."""
    for name, found in evidence.environments.items():
        if not evidence.intact(name):
            continue
        facts = evidence.json(name)
        root = installed.folder(facts)
        if found is None:
            yield missing(
                str(root), f"{name} describes it, and this store hasn't got it", remedies.again(name)
            )
            continue
        anew = f"rm -r {root}; {remedies.again(name)}"
        for path, wanted in found.digests.items():
            yield from _compared(evidence, str(path), wanted, "a package of the environment has it", anew)
        for path in found.unlisted:
            yield _foreign(str(path), "no package of the environment has it", anew)
        if found.installed_sha256 != facts["installed_sha256"]:
            yield Finding(
                Kind.TAMPERED,
                f"{root}/**/RECORD",
                f"the packages' lists of files aren't those of {name}",
                facts["installed_sha256"],
                found.installed_sha256,
                anew,
            )


def external_environments(evidence: Evidence, remedies: Remedies) -> Iterator[Finding]:
    """Every external Python still has installed what was written down when it was used."""
    environments = evidence.study.environments
    for role in evidence.study.roles:
        name, chosen = f"environments/{environments.name(role)}.json", environments.of(role)
        facts = evidence.json(name) if isinstance(chosen, External) and evidence.intact(name) else None
        if not isinstance(chosen, External) or not isinstance(facts, dict):
            continue
        try:
            today = external.frozen(role, chosen)
        except StudyError as error:
            what = f"{name} describes it, and it can't be asked here: {error.reason}"
            yield missing(chosen.python, what, error.remedy)
            continue
        if digest_of(today) != facts["frozen_sha256"]:
            names = ", ".join(sorted(_changed(facts, today)))
            yield Finding(
                Kind.STALE,
                name,
                f"what {chosen.python} has installed has changed since: {names}",
                facts["frozen_sha256"],
                digest_of(today),
                remedies.run,
            )


def _changed(then: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """The packages that differ in version or files, and ``python`` if its version does."""
    for name in {*then["packages"], *now["packages"]}:
        if any(then[part].get(name) != now[part].get(name) for part in ("packages", "records")):
            yield name
    yield from set(then["conda"]) ^ set(now["conda"])
    if then["python"] != now["python"]:
        yield "python"


def numbers(evidence: Evidence, remedies: Remedies) -> Iterator[Finding]:
    """Every number of the report stands where it says, in what the report was made from.

    Sources with a finding of their own are left out.
    """

    def sound(name: str) -> bool:
        if name.endswith(".prov.json"):
            return evidence.believed_record(name) is not None
        return name == "study.json" or (name in evidence.promised and evidence.intact(name))

    report = evidence.artifacts[-1].main
    for what, wanted, found in wrong_numbers(evidence.results, report, sound, _sources(evidence)):
        yield Finding(Kind.TAMPERED, report, what, wanted, found, remedies.again(report))


def _sources(evidence: Evidence) -> set[str] | None:
    """Where a number can come from: the study, and all that the stages left whose work the report took.

    None if a record can't be believed: nobody knows then what its stage left.
    """
    believed = evidence.believed()
    if len(believed) < len(evidence.artifacts):
        return None
    own, read = believed[-1]
    taken = {*read.dependencies, own.main}
    left = ([one.record, *one.outputs.values()] for one, _ in believed if taken & {*one.outputs.values()})
    return {"study.json"}.union(*left)


def _compared(evidence: Evidence, name: str, wanted: str | None, why: str, remedy: str) -> Iterator[Finding]:
    """A finding if a file is missing or has other bytes; without ``wanted`` nobody knows its bytes."""
    found = evidence.digests.sha256(evidence.results / name)
    if found is None:
        yield missing(name, why, remedy)
    elif wanted is not None and found != wanted:
        yield Finding(
            Kind.TAMPERED, name, "its bytes are not those that were recorded", wanted, found, remedy
        )


def _foreign(file: str, what: str, remedy: str) -> Finding:
    return Finding(Kind.TAMPERED, file, what, "no such file", "a file", f"delete it, or: {remedy}")


def _files_in(folder: Path) -> Iterator[Path]:
    """All files below a folder; hidden ones are no part of a checkpoint."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in sorted(names) if not name.startswith("."))
