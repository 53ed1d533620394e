"""The protocol: start a server, warm it up, send shuffled rounds, and write down what came."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from reproquant.bench.checks import judge
from reproquant.bench.client import Client, Reply
from reproquant.bench.measurement import Measurement, Request, Status, Workload
from reproquant.bench.statistics import levels
from reproquant.bench.workload import Prompts, digest_of_ids
from reproquant.engines.base import Endpoint, Engine, Plan
from reproquant.engines.refusals import Unsupported
from reproquant.errors import StudyError, ToolError
from reproquant.files import repository, sha256_file
from reproquant.machine import gpu, host
from reproquant.study import Benchmark, Subject

LAUNCH = 0
DEATH_S = 3.0
MEMORY_INTERVAL_S = 1.0


@dataclass(frozen=True)
class _Group:
    """Requests to send together: as many as ``concurrency``."""

    warmup: bool
    round: int
    concurrency: int


@dataclass
class _Session:
    """What one launch of the server gave, kept even if it ends half-way."""

    busy_share: float
    ids_sha256: str | None = None
    start_s: list[float] = field(default_factory=list)
    warmup: list[Request] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    hits: float | None = None
    peak_rss_bytes: int | None = None
    failure: Unsupported | ToolError | None = None

    @property
    def broken(self) -> bool:
        """Whether a request ended in an error; no more are sent after one."""
        return any(request.error for request in (*self.warmup, *self.requests))


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
    session = _Session(busy_share=host.busy_share())
    try:
        _serve(engine, plan, subject, benchmark, log, session)
    except (Unsupported, ToolError) as failure:
        session.failure = failure
    return _written_down(engine, plan, subject, benchmark, session)


def _written_down(
    engine: Engine, plan: Plan, subject: Subject, benchmark: Benchmark, session: _Session
) -> Measurement:
    found = levels(session.requests)
    status, reasons = judge(
        session.requests, found, benchmark, session.hits, subject.gpus > 0, session.busy_share
    )
    if session.failure or len(found) < len(set(benchmark.concurrencies)):
        status, reasons = _failed(session, reasons if status == "rejected" else [])
    return Measurement(
        subject=subject.name,
        engine=engine.name,
        artifact=subject.artifact,
        status=status,
        reasons=host.without_private_paths(reasons),
        evidence=host.without_private_paths(_evidence(session)),
        expected=subject.expected,
        hardware="gpu" if subject.gpus else "cpu",
        machine={
            "host": host.describe(),
            "gpus": [item.describe() for item in gpu.gpus()],
            "busy_share_before": round(session.busy_share, 3),
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
        levels=found,
    )


def _serve(
    engine: Engine, plan: Plan, subject: Subject, benchmark: Benchmark, log: Path, session: _Session
) -> None:
    try:
        endpoint = engine.launch(plan, log)
        session.start_s.append(endpoint.start_s)
        with _memory_watched(engine, session):
            asyncio.run(_talk(engine, endpoint, subject, benchmark, session))
    finally:
        engine.stop()


async def _talk(
    engine: Engine, endpoint: Endpoint, subject: Subject, benchmark: Benchmark, session: _Session
) -> None:
    groups = _groups(benchmark)
    async with Client(endpoint.url, subject.name, engine.dialect, benchmark.request_timeout_s) as client:
        ids = await client.tokenize((repository() / benchmark.prompt).read_text(encoding="utf-8"))
        session.ids_sha256 = digest_of_ids(ids)
        count = sum(group.concurrency for group in groups)
        prompts = Prompts(ids, benchmark.prompt_tokens, count, benchmark.seed)
        hits = await client.cache_hits()
        for group in groups:
            await _send(client, group, prompts, benchmark.output_tokens, session)
            if session.broken:
                break
        if engine.died(within_s=DEATH_S if session.broken else 0):
            raise engine.failure("it died while it was measured")
        if hits is not None and not session.broken:
            session.hits = (await client.cache_hits() or 0) - hits


def _groups(benchmark: Benchmark) -> list[_Group]:
    """Warm-up, then the rounds, the concurrencies of each in an order drawn with the seed.

    The warm-up goes through the concurrencies until each was there and at least
    ``warmup_requests`` requests were sent.
    """
    groups: list[_Group] = []
    while sum(group.concurrency for group in groups) < benchmark.warmup_requests or not groups:
        groups += [
            _Group(True, len(groups) + place, size) for place, size in enumerate(benchmark.concurrencies)
        ]
    order = random.Random(benchmark.seed)
    for number in range(benchmark.rounds):
        shuffled = order.sample(benchmark.concurrencies, len(benchmark.concurrencies))
        groups += [_Group(False, number, size) for size in shuffled]
    return groups


async def _send(
    client: Client, group: _Group, prompts: Prompts, output_tokens: int, session: _Session
) -> None:
    draw = prompts.warmup if group.warmup else prompts.measured
    batch = [draw() for _ in range(group.concurrency)]
    released_ns, replies = await client.together([prompt.ids for prompt in batch], output_tokens)
    kept = session.warmup if group.warmup else session.requests
    kept += [
        _request(group, index, prompt.nonce_id, reply, released_ns)
        for index, (prompt, reply) in enumerate(zip(batch, replies, strict=True))
    ]


def _request(group: _Group, index: int, nonce_id: int, reply: Reply, released_ns: int) -> Request:
    def ms(moment_ns: int | None) -> float | None:
        return None if moment_ns is None else (moment_ns - released_ns) / 1e6

    return Request(
        launch=LAUNCH,
        round=group.round,
        concurrency=group.concurrency,
        index=index,
        nonce_id=nonce_id,
        sent_ms=(reply.sent_ns - released_ns) / 1e6,
        first_token_ms=ms(reply.first_ns),
        last_token_ms=ms(reply.last_ns),
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        cached_tokens=reply.cached_tokens,
        error=reply.error,
    )


@contextmanager
def _memory_watched(engine: Engine, session: _Session) -> Iterator[None]:
    """Sample the server's memory while the body runs; the peak goes into ``session``."""
    group, over = engine.process_group, threading.Event()

    def watch() -> None:
        while group is not None and not over.is_set():
            session.peak_rss_bytes = max(session.peak_rss_bytes or 0, host.group_rss_bytes(group))
            over.wait(MEMORY_INTERVAL_S)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _failed(session: _Session, reasons: list[str]) -> tuple[Status, list[str]]:
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


def _evidence(session: _Session) -> str | None:
    match session.failure:
        case Unsupported() as refusal:
            return refusal.evidence
        case ToolError() as failure:
            return failure.reason
    return next((request.error for request in (*session.warmup, *session.requests) if request.error), None)


def _cache_proof(session: _Session) -> list[str]:
    told = [request.cached_tokens for request in session.requests if request.cached_tokens is not None]
    proofs = []
    if told and len(told) == len(session.requests):
        proofs.append(f"proof: the server counted {sum(told)} cached tokens in {len(told)} requests")
    if session.hits is not None:
        proofs.append(f"proof: the server's counter of cache hits grew by {session.hits:g}, warm-up included")
    return proofs
