"""The protocol: serve and ask a subject as the study says, cross-check, and write down what came."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from reproquant.bench import circumstances
from reproquant.bench.between_cards import between_cards
from reproquant.bench.ceiling import ceiling
from reproquant.bench.checks import Findings, judge
from reproquant.bench.crosscheck import cross_checks
from reproquant.bench.measurement import (
    Bandwidth,
    BetweenCards,
    Ceiling,
    Level,
    Measurement,
    Status,
    Workload,
)
from reproquant.bench.pinning import shares
from reproquant.bench.session import Session, run
from reproquant.bench.statistics import levels
from reproquant.engines.base import Engine, Plan
from reproquant.engines.refusals import Unsupported
from reproquant.errors import FormatError, StudyError, ToolError
from reproquant.files import canonical_json, repository, sha256_file, write_text
from reproquant.machine import bandwidth, gpu, host
from reproquant.machine.links import links
from reproquant.study import Benchmark, Subject


def measure(
    engine: Engine,
    subject: Subject,
    benchmark: Benchmark,
    log: Path,
    telemetry: Path | None = None,
    bandwidth_gb_per_s: float | None = None,
) -> Measurement:
    """Measure one subject; the server's output goes to ``log``, and nothing is left running.

    What the server does wrong never raises: a refusal gives ``unsupported``, a
    server that doesn't start or dies gives ``failed`` with what was measured
    until then, an untrustworthy run ``rejected``. The sampler's samples go to
    ``telemetry``. ``bandwidth_gb_per_s`` is that of one GPU's memory by its data
    sheet, and nothing to a subject without GPUs. The cards are described before the
    start: one that falls off the bus under load can't be asked any more. Raises
    StudyError for a workload that can't be measured, and ToolError if the driver
    gives an error for a card before the start, or shows fewer than the subject has.
    """
    if benchmark.output_tokens < 2:
        raise StudyError("benchmark.output_tokens", "one token has no decode step to time", "give at least 2")
    plan = engine.plan(subject)
    begun = log.stat().st_size if log.exists() else 0
    cards, joined = gpu.gpus(), links() if subject.gpus > 1 else None
    session = run(engine, plan, subject, benchmark, log)
    if telemetry:
        write_text(telemetry, canonical_json(session.telemetry.model_dump(mode="json")) + "\n")
    shown = gpu.indices(plan.visible(subject.gpus), [card.uuid for card in cards])
    between = between_cards(shown, joined, engine.name, _since(log, begun)) if joined else None
    return _written_down(engine, plan, subject, benchmark, session, bandwidth_gb_per_s, cards, between)


def _since(log: Path, begun: int) -> str:
    return log.read_bytes()[begun:].decode(errors="replace") if log.exists() else ""


def _written_down(
    engine: Engine,
    plan: Plan,
    subject: Subject,
    benchmark: Benchmark,
    session: Session,
    bandwidth_gb_per_s: float | None,
    cards: Sequence[gpu.Gpu],
    between: BetweenCards | None,
) -> Measurement:
    on_gpu = subject.gpus > 0
    found = levels(session.requests)
    checks = cross_checks(found, session.requests, session.rounds, session.native, benchmark.limits)
    energy, of_energy, no_energy = circumstances.energies(session.telemetry, benchmark, on_gpu)
    checks += of_energy
    seen = circumstances.findings(session.telemetry, benchmark.limits, on_gpu, os.cpu_count() or 1)
    top = _ceiling(engine, subject, benchmark, found, bandwidth_gb_per_s, seen)
    watched = circumstances.watched(session.telemetry, no_energy)
    status, reasons = judge(
        session.requests,
        found,
        benchmark,
        session.hits,
        on_gpu,
        session.busy_share,
        checks,
        session.rounds,
        session.doubts,
        session.warmup,
        session.preemptions,
        seen,
    )
    if session.failure or len(found) < len(set(benchmark.concurrencies)):
        status, reasons = _failed(session, reasons if status == "rejected" else [])
    return Measurement(
        subject=subject.name,
        engine=engine.name,
        artifact=subject.artifact,
        emulated=subject.emulated,
        status=status,
        reasons=host.without_private_paths(reasons),
        evidence=host.without_private_paths(_evidence(session)),
        expected=subject.expected,
        hardware="gpu" if on_gpu else "cpu",
        machine={
            "host": host.describe(),
            "gpus": [card.describe() for card in cards],
            "busy_share_before": round(session.busy_share, 3),
            "client_cores": session.client_cores,
        },
        command=host.without_private_paths(plan.command),
        environment_variables=host.without_private_paths(dict(plan.environment_variables)),
        engine_facts=host.without_private_paths(engine.describe()),
        artifact_bytes=engine.artifact_bytes,
        workload=Workload(
            prompt_tokens=benchmark.prompt_tokens,
            output_tokens=benchmark.output_tokens,
            text_sha256=sha256_file(repository() / benchmark.prompt),
            ids_sha256=session.ids_sha256,
        ),
        cache_off=[*plan.cache_off, *_cache_proof(session)],
        start_s=session.start_s,
        peak_rss_bytes=circumstances.peak_rss_bytes(session.telemetry),
        warmup=session.warmup,
        requests=session.requests,
        rounds=session.rounds,
        levels=found,
        native=session.native,
        checks=checks,
        watched=watched,
        energy=energy,
        ceiling=top,
        between_cards=between,
    )


def _ceiling(
    engine: Engine,
    subject: Subject,
    benchmark: Benchmark,
    found: Sequence[Level],
    bandwidth_gb_per_s: float | None,
    seen: Findings,
) -> Ceiling | None:
    """The ceiling of a subject that was measured; a decode above it, or none to be had, goes to ``seen``."""
    try:
        streamed = engine.streamed(subject) if found else None
    except FormatError as error:
        seen.weak.append(f"Its ceiling is unknown: {error.where}: {error.reason}.")
        return None
    if streamed is None:
        return None
    try:
        measured, why_not = _bandwidth(subject), None
    except ToolError as error:
        measured, why_not = None, f"no bandwidth was measured: {error.reason}"
    sheet = bandwidth_gb_per_s if subject.gpus else None
    top, impossible = ceiling(streamed, engine.artifact_bytes, found, benchmark, sheet, measured, why_not)
    seen.wrong += [impossible] if impossible else []
    return top


def _bandwidth(subject: Subject) -> Bandwidth:
    """What the subject's cards, or the cores that a server gets, move; raises ToolError if they can't."""
    if not subject.gpus:
        return Bandwidth(**bandwidth.of_cpu(sorted(shares()[0])))
    found = bandwidth.of_gpus(gpu.visible_devices(subject.gpus))
    slowest = min(found, key=lambda card: card["gb_per_s"])
    return Bandwidth(how="copy within the card", **slowest)


def _failed(session: Session, reasons: list[str]) -> tuple[Status, list[str]]:
    match session.failure:
        case Unsupported() as refusal:
            return "unsupported", [refusal.reason]
        case ToolError() as failure:
            return "failed", [failure.reason.splitlines()[0], *reasons]
    return "failed", reasons


def _evidence(session: Session) -> str | None:
    match session.failure:
        case Unsupported() as refusal:
            return refusal.evidence
        case ToolError() as failure:
            return failure.reason
    return next((request.error for request in (*session.warmup, *session.requests) if request.error), None)


def _cache_proof(session: Session) -> list[str]:
    asked = (*session.warmup, *session.requests)
    told = [request.cached_tokens for request in asked if request.cached_tokens is not None]
    proofs = []
    if told and len(told) == len(asked):
        proofs.append(
            f"proof: the server counted {sum(told)} cached tokens in {len(told)} requests, warm-up included"
        )
    if session.hits is not None:
        proofs.append(f"proof: the server's counter of cache hits grew by {session.hits:g}, warm-up included")
    return proofs
