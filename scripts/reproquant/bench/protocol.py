"""The protocol: serve and ask a subject as the study says, cross-check, and write down what came."""

from __future__ import annotations

from pathlib import Path

from reproquant.bench.checks import judge
from reproquant.bench.crosscheck import cross_checks
from reproquant.bench.measurement import Measurement, Status, Workload
from reproquant.bench.session import Session, run
from reproquant.bench.statistics import levels
from reproquant.engines.base import Engine, Plan
from reproquant.engines.refusals import Unsupported
from reproquant.errors import StudyError, ToolError
from reproquant.files import repository, sha256_file
from reproquant.machine import gpu, host
from reproquant.study import Benchmark, Subject


def measure(engine: Engine, subject: Subject, benchmark: Benchmark, log: Path) -> Measurement:
    """Measure one subject; the server's output goes to ``log``, and nothing is left running.

    What the server does wrong never raises: a refusal gives ``unsupported``, a
    server that doesn't start or dies gives ``failed`` with what was measured
    until then, an untrustworthy run ``rejected``. Raises StudyError for a
    workload that can't be measured.
    """
    if benchmark.output_tokens < 2:
        raise StudyError("benchmark.output_tokens", "one token has no decode step to time", "give at least 2")
    plan = engine.plan(subject)
    session = run(engine, plan, subject, benchmark, log)
    return _written_down(engine, plan, subject, benchmark, session)


def _written_down(
    engine: Engine, plan: Plan, subject: Subject, benchmark: Benchmark, session: Session
) -> Measurement:
    found = levels(session.requests)
    checks = cross_checks(found, session.requests, session.rounds, session.native, benchmark.limits)
    status, reasons = judge(
        session.requests,
        found,
        benchmark,
        session.hits,
        subject.gpus > 0,
        session.busy_share,
        checks,
        session.rounds,
        session.doubts,
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
        hardware="gpu" if subject.gpus else "cpu",
        machine={
            "host": host.describe(),
            "gpus": [item.describe() for item in gpu.gpus()],
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
        peak_rss_bytes=session.peak_rss_bytes,
        warmup=session.warmup,
        requests=session.requests,
        rounds=session.rounds,
        levels=found,
        native=session.native,
        checks=checks,
    )


def _failed(session: Session, reasons: list[str]) -> tuple[Status, list[str]]:
    broken = [
        f"Warm-up request {request.index} broke: {request.error}"
        for request in session.warmup
        if request.error
    ]
    match session.failure:
        case Unsupported() as refusal:
            return "unsupported", [refusal.reason]
        case ToolError() as failure:
            return "failed", [failure.reason.splitlines()[0], *broken, *reasons]
    return "failed", [*broken, *reasons]


def _evidence(session: Session) -> str | None:
    match session.failure:
        case Unsupported() as refusal:
            return refusal.evidence
        case ToolError() as failure:
            return failure.reason
    return next((request.error for request in (*session.warmup, *session.requests) if request.error), None)


def _cache_proof(session: Session) -> list[str]:
    told = [request.cached_tokens for request in session.requests if request.cached_tokens is not None]
    proofs = []
    if told and len(told) == len(session.requests):
        proofs.append(f"proof: the server counted {sum(told)} cached tokens in {len(told)} requests")
    if session.hits is not None:
        proofs.append(f"proof: the server's counter of cache hits grew by {session.hits:g}, warm-up included")
    return proofs
