"""What a report says, before anybody decides how it looks."""

from __future__ import annotations

from dataclasses import dataclass

from reproquant.engines.compatibility import expectations
from reproquant.report.answer import answer, concurrencies, context, workload
from reproquant.report.artifacts import Artifact, artifacts
from reproquant.report.claims import ClaimsSection, read_claims
from reproquant.report.doubts import doubted, tokenization
from reproquant.report.drift import Drift, read_drift
from reproquant.report.facts import Fact, facts
from reproquant.report.numbers import Number, Numbers
from reproquant.report.proofs import Proofs, read_proofs
from reproquant.report.quality import Quality, read_quality
from reproquant.report.sentences import Sentence
from reproquant.report.subjects import Subject, read_subjects
from reproquant.study import Study


@dataclass(frozen=True)
class Group:
    """Facts that belong together, under a title."""

    title: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Content:
    """Everything that the templates and plots are given."""

    study: str
    model: str
    answer: Sentence
    context: tuple[Sentence, ...]
    workload: Sentence
    concurrencies: tuple[Number, ...]
    subjects: tuple[Subject, ...]
    expected: dict[str, str]
    tokenization: Sentence | None
    drift: Drift
    quality: Quality | None
    artifacts: tuple[Artifact, ...]
    proofs: Proofs | None
    claims: ClaimsSection
    environment: tuple[Group, ...]
    numbers: Numbers


def read_content(numbers: Numbers, study: Study) -> Content:
    """The content of a study's report; raises FormatError for a result that is missing or malformed."""
    subjects = read_subjects(numbers, study)
    drift = read_drift(numbers, study, subjects)
    subjects = doubted(subjects, drift)
    made = artifacts(numbers, study)
    return Content(
        study=study.name,
        model=study.model.name,
        answer=answer(numbers, study, subjects),
        context=context(numbers, study, subjects),
        workload=workload(numbers),
        concurrencies=concurrencies(numbers, study),
        subjects=subjects,
        expected={
            name: f"The compatibility table has it as {row.verdict}: {row.why} (From: {row.known_from}.)"
            for name, row in expectations(study).items()
        },
        tokenization=tokenization(subjects),
        drift=drift,
        quality=read_quality(numbers, study, subjects),
        artifacts=made,
        proofs=read_proofs(numbers),
        claims=read_claims(numbers, study, subjects, made),
        environment=tuple(group for group in _environment(numbers, study, subjects) if group.facts),
        numbers=numbers,
    )


def _environment(numbers: Numbers, study: Study, subjects: tuple[Subject, ...]) -> list[Group]:
    baseline = f"bench/{study.benchmark.baseline}.json"
    groups = [Group("Machine the study is for", tuple(facts(numbers, "study.json", "/machine")))]
    record = f"{baseline}.prov.json"
    if numbers.has(record):
        run = facts(numbers, record, "/predicate/buildDefinition/internalParameters")
        when = facts(numbers, record, "/predicate/runDetails/metadata")
        groups.append(Group("Where and when the baseline ran", tuple(run + when)))
    groups.append(
        Group(
            "Prompt and protocol",
            tuple(
                facts(numbers, baseline, "/workload", without=("prompt_tokens", "output_tokens"))
                + facts(numbers, "study.json", "/benchmark")
            ),
        )
    )
    if numbers.has("llama_cpp/build.json"):
        groups.append(Group("llama.cpp build", tuple(facts(numbers, "llama_cpp/build.json"))))
    groups += [Group(f"Server of {subject.name}", tuple(_server(numbers, subject))) for subject in subjects]
    return groups


def _server(numbers: Numbers, subject: Subject) -> list[Fact]:
    shown = ("environment_variables", "engine_facts", "cache_off", "start_s", "peak_rss_bytes")
    rest = numbers.read(subject.path).keys() - set(shown)
    return [("command", subject.command), *facts(numbers, subject.path, without=rest)]
