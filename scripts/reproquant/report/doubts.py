"""Doubts that no measurement can have of itself: they come from holding several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from reproquant.report.drift import Drift
from reproquant.report.sentences import Sentence, say
from reproquant.report.subjects import Subject


def doubted(subjects: Sequence[Subject], drift: Drift) -> tuple[Subject, ...]:
    """The subjects with these doubts; one that was ok and has any is flagged."""
    return tuple(_with(subject, tuple(_doubts(subject, subjects, drift))) for subject in subjects)


def tokenization(subjects: Sequence[Subject]) -> Sentence | None:
    """That all servers made the same token ids of the prompt's text; None unless two and more did."""
    asked = [subject for subject in subjects if subject.ids]
    digests = {subject.ids.text for subject in asked if subject.ids}
    if len(asked) < 2 or len(digests) > 1 or not asked[0].ids:
        return None
    return say("All servers made the same token ids of the prompt's text, sha256 {}.", asked[0].ids)


def _doubts(subject: Subject, subjects: Sequence[Subject], drift: Drift) -> Iterator[Sentence]:
    if drift.doubt and subject.name in drift.between:
        yield drift.doubt
    other = next((one for one in subjects if one.ids and one.ids.text != _text(subject)), None)
    if subject.ids and other and other.ids:
        yield say(
            f"Of the prompt's text its server made token ids with sha256 {{}}, and that of {other.name} ids "
            "with sha256 {}: they were not given the same work.",
            subject.ids, other.ids,
        )  # fmt: skip


def _text(subject: Subject) -> str | None:
    return subject.ids.text if subject.ids else None


def _with(subject: Subject, doubts: tuple[Sentence, ...]) -> Subject:
    status = "flagged" if doubts and subject.status == "ok" else subject.status
    return replace(subject, status=status, doubts=doubts)
