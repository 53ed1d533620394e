"""Measure again on purpose: forget a stored measurement, and remove what was made from it."""

from __future__ import annotations

from pathlib import Path

from reproquant.errors import FormatError, StudyError
from reproquant.provenance import stored
from reproquant.provenance.graph import PUBLISHED
from reproquant.provenance.reading import read_record
from reproquant.provenance.record import record_path
from reproquant.study import Study


def forget(results: Path, subject: str) -> None:
    """Forget a subject's measurement, in the results and in the store.

    The measurement, its record and the report with its record go, so that the
    next run makes them: a missing report is what Snakemake notices. Raises
    StudyError for a subject that the study doesn't have or that wasn't measured, and
    FormatError for a damaged record and for published results, which no run makes again.
    """
    if (results / PUBLISHED).is_file():
        raise FormatError(
            results, "it is published: no run would measure again what is forgotten", "name results/STUDY"
        )
    Study.load(results / "study.json").subject(subject)
    measurement = results / "bench" / f"{subject}.json"
    telemetry = measurement.with_suffix(".telemetry.json")
    record = record_path(measurement)
    if not record.is_file():
        raise StudyError(
            record, f"'{subject}' has no measurement to forget", "run the study: it will be measured"
        )
    read = read_record(record)
    if read is None or read.record is None:
        raise FormatError(
            record, "it is no record, so nobody knows what to forget", "delete it and run the study first"
        )
    if read.stored:
        stored.forget(read.stored["key"])
    report = results / "report"
    for path in (measurement, telemetry, record, *report.glob("*")):
        path.unlink(missing_ok=True)
