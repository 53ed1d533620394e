"""The audit: is everything in a results directory what its records say, and would it be made so today?

A finding names the file that is wrong and not those that were made from it: where
two files contradict each other, the root tells which of them was changed.
"""

from __future__ import annotations

from pathlib import Path

from reproquant.errors import StudyError
from reproquant.provenance import chain, contents, published
from reproquant.provenance.digests import Digests, Progress
from reproquant.provenance.evidence import Evidence
from reproquant.provenance.findings import Finding, Kind, Remedies
from reproquant.provenance.reading import read_root
from reproquant.provenance.root import NAME, rendered
from reproquant.study import Study

STUDY = "study.json"
CHECKS = (
    chain.root,
    chain.records,
    chain.links,
    contents.files,
    contents.listed,
    contents.numbers,
    chain.stale,
)
OF_THIS_MACHINE = (contents.environments, contents.external_environments)


def audit(
    results: Path,
    digests: Digests,
    progress: Progress = lambda done, total: None,
    environments: bool = True,
) -> list[Finding]:
    """Compare a study's results with its records, the root and today's checkout.

    ``digests`` does the hashing; a file that it is told to trust isn't read.
    Without ``environments`` neither the store nor an external Python is looked at:
    results that came from another machine can be checked as well. Of published results
    that is never done, their recipes aren't compared with today's checkout, what they must have
    is what their own root and records tell of (``graph``), and what they withhold isn't missing.
    """
    is_published = (results / published.NAME).is_file()
    remedies = Remedies(results.resolve().name, is_published)
    study = _study(results, digests, remedies)
    if isinstance(study, Finding):
        return [study]
    evidence = Evidence.gather(results, study, digests)
    environments = environments and not is_published
    paths = contents.of_results(evidence) | (contents.of_environments(evidence) if environments else set())
    digests.hash_all(paths, progress)
    checks = (*CHECKS, *OF_THIS_MACHINE) if environments else CHECKS
    withheld = published.absent(evidence)
    return [
        finding
        for check in checks
        if not (is_published and check is chain.stale)
        for finding in check(evidence, remedies)
        if not (finding.kind is Kind.MISSING and finding.file in withheld)
    ]


def _study(results: Path, digests: Digests, remedies: Remedies) -> Study | Finding:
    """The study, or why there is none to go by; each run that does anything writes it anew."""
    path, root = results / STUDY, read_root(results)
    again = remedies.again(STUDY if remedies.published else NAME)
    found = digests.sha256(path)
    if found is None:
        return Finding(
            Kind.MISSING, STUDY, "it says what there must be; nothing was checked", "a file", "none", again
        )
    wanted = root.study_sha256 if root else "a study"
    try:
        study = Study.load(path)
    except StudyError as error:
        kind = Kind.STALE if found == wanted else Kind.TAMPERED
        reason = " ".join(error.reason.split())
        return Finding(
            kind, STUDY, f"it can't be used, so nothing was checked: {reason}", wanted, found, again
        )
    if root is None or found == wanted:
        return study
    if path.read_bytes() != rendered(study.dump()):
        what = "it was edited after it had been written; nothing else was checked"
        return Finding(Kind.TAMPERED, STUDY, what, wanted, found, again)
    what = "it isn't the study that was sealed, or the run wasn't ended; nothing else was checked"
    return Finding(Kind.BROKEN, STUDY, what, wanted, found, again)
