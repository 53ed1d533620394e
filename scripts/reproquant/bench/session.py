"""Serving and asking: every launch of the server, its warm-up, its rounds, and what came of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reproquant.bench.checks import unsteady_reasons
from reproquant.bench.client import Client, Reply
from reproquant.bench.counters import Counters
from reproquant.bench.measurement import Native, Request, Round, ServerTimes
from reproquant.bench.pinning import pinned, shares
from reproquant.bench.statistics import levels, movement, summarize
from reproquant.bench.telemetry import Recorder, Telemetry
from reproquant.bench.workload import Prompts, digest_of_ids
from reproquant.engines.base import Endpoint, Engine, Plan
from reproquant.engines.refusals import Unsupported
from reproquant.errors import StudyError, ToolError
from reproquant.files import repository
from reproquant.machine import host
from reproquant.study import Benchmark, Subject

DEATH = "it died while it was measured"
DEATH_S = 3.0
AGREEING = 3


@dataclass
class Session:
    """What the launches gave, kept even if one ends half-way.

    ``hits`` is the growth of the server's counter of cached tokens, all
    launches and warm-ups together; null if it has none. ``preemptions`` is that
    of its counter of requests that it put off half-way.
    """

    busy_share: float
    telemetry: Telemetry
    ids_sha256: str | None = None
    client_cores: list[int] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    warmup: list[Request] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    hits: float | None = None
    preemptions: float = 0
    doubts: list[str] = field(default_factory=list)
    native: Native | None = None
    failure: Unsupported | ToolError | None = None

    @property
    def broken(self) -> bool:
        """Whether a request ended in an error; no more are sent after one."""
        return any(request.error for request in (*self.warmup, *self.requests))


def run(engine: Engine, plan: Plan, subject: Subject, benchmark: Benchmark, log: Path) -> Session:
    """Every launch, one after the other, then the engine's own tool; what goes wrong stands in the session.

    Round n belongs to launch n * launches // rounds; the order of the
    concurrencies in it is drawn with the seed. If the planned rounds are
    unsteady, the last launch goes on to ``rounds_if_unsteady``.
    """
    server_cores, client_cores = shares()
    recorder = Recorder(
        subject.name,
        lambda: engine.process_group,
        engine.processes,
        plan.visible(subject.gpus),
        server_cores,
        client_cores,
    )
    session = Session(host.busy_share(), recorder.telemetry)
    session.client_cores = sorted(client_cores)
    _follow(engine, plan, _Course(subject, benchmark, session, recorder), log)
    return session


def _follow(engine: Engine, plan: Plan, course: _Course, log: Path) -> None:
    session, benchmark = course.session, course.benchmark
    try:
        for launch in range(benchmark.launches):
            _serve(engine, plan, launch, course, log)
            if session.broken:
                return
    except (Unsupported, ToolError) as failure:
        session.failure = failure
        return
    if benchmark.native_repetitions:
        with course.recorder.span("native tool"), pinned(shares()[0]):
            _ask_native_tool(engine, plan, course.subject, log, session)


def _ask_native_tool(engine: Engine, plan: Plan, subject: Subject, log: Path, session: Session) -> None:
    """The engine's own tool on the same workload; a doubt if it gives nothing."""
    try:
        found = engine.native(plan, subject, log)
    except ToolError as error:
        session.doubts.append(
            f"The engine's own benchmark tool gave no figures: {error.reason.splitlines()[0]}."
        )
        return
    if found:
        session.native = Native(
            tool=found.tool,
            commands=[host.without_private_paths(command) for command in found.commands],
            prefill_tok_per_s=summarize(found.prefill_tok_per_s),
            decode_tok_per_s=summarize(found.decode_tok_per_s),
        )


def _serve(engine: Engine, plan: Plan, launch: int, course: _Course, log: Path) -> None:
    server_cores, client_cores = shares()
    with course.recorder.span("server", launch):
        try:
            with pinned(server_cores):
                endpoint = engine.launch(plan, log)
            course.recorder.settled()
            course.session.start_s.append(endpoint.start_s)
            with pinned(client_cores):
                asyncio.run(_talk(engine, endpoint, launch, course))
        finally:
            engine.stop()


async def _talk(engine: Engine, endpoint: Endpoint, launch: int, course: _Course) -> None:
    async with Client(
        endpoint.url, course.subject.name, engine.dialect, course.benchmark.request_timeout_s
    ) as client:
        dies_within_s = 0.0
        try:
            await course.follow(client, launch)
        except _Broken:
            dies_within_s = DEATH_S
        except ToolError as error:
            raise (engine.failure(DEATH) if engine.died(DEATH_S) else error) from None
        if engine.died(dies_within_s):
            raise engine.failure(DEATH)


class _Broken(Exception):
    """A request ended in an error: the session tells it, and nothing more is sent."""


class _Course:
    """The order of requests through all launches of a subject; prompts and order never start again."""

    def __init__(self, subject: Subject, benchmark: Benchmark, session: Session, recorder: Recorder) -> None:
        self.recorder = recorder
        self.subject = subject
        self.benchmark = benchmark
        self.session = session
        self._order = random.Random(benchmark.seed)
        self._prompts: Prompts | None = None
        self._launch = 0
        self._counters = Counters()

    async def follow(self, client: Client, launch: int) -> None:
        """Warm a launch up and send its rounds; raises _Broken, or ToolError if the server can't be asked."""
        self._launch = launch
        if self._prompts is None:
            self._prompts = await self._cut_prompts(client)
        self._counters = await client.counters()
        if self._counters.cached_tokens is not None:
            self.session.hits = self.session.hits or 0.0
        await self._warm_up(client)
        planned = self.benchmark.rounds
        for number in range(planned):
            if number * self.benchmark.launches // planned == launch:
                await self._round(client, number)
        if launch == self.benchmark.launches - 1 and self._is_unsteady():
            for number in range(planned, self.benchmark.rounds_if_unsteady):
                await self._round(client, number)
        wanted_s = self.benchmark.energy_seconds
        if launch == self.benchmark.launches - 1 and wanted_s and self.recorder.tells_energy():
            for size in sorted(set(self.benchmark.concurrencies)):
                await self._sustain(client, size, wanted_s)

    async def _cut_prompts(self, client: Client) -> Prompts:
        """The prompts of all launches, from the server's own ids of the study's text."""
        benchmark = self.benchmark
        ids = await client.tokenize(_text(benchmark.prompt))
        self.session.ids_sha256 = digest_of_ids(ids)
        fewest, together = min(benchmark.concurrencies), sum(benchmark.concurrencies)
        groups = max(benchmark.warmup_requests, benchmark.warmup_at_most)
        warmup = groups * fewest + together - fewest
        rounds = max(benchmark.rounds, benchmark.rounds_if_unsteady) * together
        count = benchmark.launches * warmup + rounds
        return Prompts(ids, benchmark.prompt_tokens, count, benchmark.seed)

    async def _warm_up(self, client: Client) -> None:
        """Lone requests until they no longer move, then each other concurrency once."""
        benchmark = self.benchmark
        fewest, *others = sorted(set(benchmark.concurrencies))
        groups: list[list[Request]] = []
        while len(groups) < benchmark.warmup_requests or (
            _movement(groups) > benchmark.limits.warmup_percent and len(groups) < benchmark.warmup_at_most
        ):
            groups.append(await self._send(client, fewest, len(groups), warmup=True))
        if (left := _movement(groups)) > benchmark.limits.warmup_percent:
            self.session.doubts.append(_not_warm(self._launch, len(groups), left, benchmark))
        for place, size in enumerate(others, len(groups)):
            await self._send(client, size, place, warmup=True)

    async def _round(self, client: Client, number: int) -> None:
        sizes = self.benchmark.concurrencies
        for size in self._order.sample(sizes, len(sizes)):
            await self._send(client, size, number, warmup=False)

    async def _send(self, client: Client, size: int, number: int, warmup: bool) -> list[Request]:
        """Send ``size`` requests together and keep what came; raises _Broken if one ended in an error."""
        assert self._prompts is not None
        draw = self._prompts.warmup if warmup else self._prompts.measured
        batch = [draw() for _ in range(size)]
        released_ns, replies = await client.together(
            [prompt.ids for prompt in batch], self.benchmark.output_tokens
        )
        sent = [
            _request(self._launch, number, size, index, prompt.nonce_id, reply, released_ns)
            for index, (prompt, reply) in enumerate(zip(batch, replies, strict=True))
        ]
        kept = self.session.warmup if warmup else self.session.requests
        if any(request.error for request in sent):
            kept += sent
            raise _Broken
        growth = await self._growth(client, sum(request.completion_tokens or 0 for request in sent))
        sent = [_timed(request, growth.times(size)) for request in sent]
        kept += sent
        if not warmup:
            self.session.rounds.append(_beside(sent, growth))
            tokens = sum(request.completion_tokens or 0 for request in sent)
            self.recorder.mark("round", number, size, (released_ns, _end_ns(replies)), size, tokens)
        return sent

    async def _sustain(self, client: Client, size: int, seconds: int) -> None:
        """Batch after batch for the sake of energy alone, until they make a window of that many seconds.

        What goes wrong here is a doubt, the rounds stand without it; raises _Broken where it was an error.
        """
        assert self._prompts is not None
        benchmark, count = self.benchmark, 0
        start_ns, end_ns = None, 0
        while start_ns is None or end_ns - start_ns < 1e9 * seconds:
            batch = [self._prompts.repeated() for _ in range(size)]
            released_ns, replies = await client.together(
                [prompt.ids for prompt in batch], benchmark.output_tokens
            )
            wrong = [reply for reply in replies if not _as_asked(reply, benchmark)]
            if wrong:
                self.session.doubts.append(
                    f"At concurrency {size} a request of the sustained load wasn't answered as asked, so "
                    f"there is no energy: {wrong[0].error or 'other counts, or tokens from a cache'}."
                )
                if wrong[0].error:
                    raise _Broken
                return
            start_ns, end_ns, count = start_ns or released_ns, _end_ns(replies), count + size
        await self._growth(client, count * benchmark.output_tokens)
        self.recorder.mark(
            "sustained", None, size, (start_ns, end_ns), count, count * benchmark.output_tokens
        )

    async def _growth(self, client: Client, expected_tokens: int) -> Counters:
        """How far the server's counters went since the last time that they were read."""
        before, self._counters = self._counters, await client.counters(self._counters, expected_tokens)
        growth = self._counters.since(before)
        if growth.cached_tokens is not None:
            self.session.hits = (self.session.hits or 0.0) + growth.cached_tokens
        self.session.preemptions += growth.preemptions or 0
        return growth

    def _is_unsteady(self) -> bool:
        return bool(unsteady_reasons(levels(self.session.requests), self.benchmark.limits))


def _text(prompt: str) -> str:
    """The study's prompt text; raises StudyError if the file can't be read as text."""
    try:
        return (repository() / prompt).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise StudyError(
            "benchmark.prompt", f"{prompt} is no UTF-8 text: {error}", "give a UTF-8 file"
        ) from error


def _movement(groups: Sequence[Sequence[Request]]) -> float:
    """How far lone requests still move, in percent, in decode or prefill, the worse; infinite for too few."""
    last = [levels(group) for group in groups[-2 * AGREEING :]]
    if len(last) < AGREEING or not all(last):
        return float("inf")
    decodes = [level.decode_tok_per_s.median for (level,) in last]
    prefills = [level.prefill_tok_per_s.median for (level,) in last]
    return 100 * max(movement(values, AGREEING) for values in (decodes, prefills))


def _not_warm(launch: int, count: int, percent: float, benchmark: Benchmark) -> str:
    head = f"Launch {launch} was still warming up after {count} requests: "
    if percent == float("inf"):
        return f"{head}there were not three to compare."
    return f"{head}its speed still moves by {percent:.1f}%; {benchmark.limits.warmup_percent:g}% is steady."


def _request(
    launch: int, number: int, size: int, index: int, nonce_id: int, reply: Reply, released_ns: int
) -> Request:
    def ms(moment_ns: int | None) -> float | None:
        return None if moment_ns is None else (moment_ns - released_ns) / 1e6

    return Request(
        launch=launch,
        round=number,
        concurrency=size,
        index=index,
        nonce_id=nonce_id,
        sent_ms=(reply.sent_ns - released_ns) / 1e6,
        first_token_ms=ms(reply.first_ns),
        last_token_ms=ms(reply.last_ns),
        first_chunk_tokens=reply.first_chunk_tokens,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        cached_tokens=reply.cached_tokens,
        server=reply.server,
        error=reply.error,
    )


def _end_ns(replies: Sequence[Reply]) -> int:
    return max(reply.last_ns or reply.sent_ns for reply in replies)


def _as_asked(reply: Reply, benchmark: Benchmark) -> bool:
    counts = (reply.prompt_tokens, reply.completion_tokens)
    return (
        not reply.error
        and counts == (benchmark.prompt_tokens, benchmark.output_tokens)
        and not reply.cached_tokens
    )


def _timed(request: Request, times: ServerTimes | None) -> Request:
    """The request with the round's mean times, if the server didn't tell its own."""
    return request if request.server or times is None else request.model_copy(update={"server": times})


def _beside(sent: Sequence[Request], growth: Counters) -> Round:
    moments = [request.sent_ms for request in sent]
    return Round(
        launch=sent[0].launch,
        round=sent[0].round,
        concurrency=sent[0].concurrency,
        start_skew_ms=max(moments) - min(moments),
        counted_tokens=None if growth.output_tokens is None else round(growth.output_tokens),
    )
