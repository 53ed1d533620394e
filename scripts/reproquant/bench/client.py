"""The measuring client: ids in, times and the server's own token counts out."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

from reproquant.bench.counters import Counters, read_counters
from reproquant.bench.measurement import ServerTimes
from reproquant.engines.base import Dialect
from reproquant.errors import ToolError

ERROR_CHARACTERS = 500
JSON = {"Content-Type": "application/json"}
SETTLE_S = 2.0
SETTLE_STEP_S = 0.01
REFUSED_BY_NETWORK = (aiohttp.ClientError, TimeoutError, OSError)

Piece = tuple[int, bytes]


@dataclass
class Reply:
    """One answered request; monotonic nanoseconds, null where it didn't get so far.

    ``first_ns`` and ``last_ns`` are the arrivals of the first and the last chunk
    with a choice: one that carries text, an unfinished character's empty one, or
    the finish reason, with which the last token is out. The counts are
    the server's, from ``usage``: chunks hold any number of tokens.
    ``first_chunk_tokens`` says how many were out with the first chunk, where the
    server tells: llama-server sends no chunk for a token that ends inside a
    character, and vLLM puts several into one when the client is slow.
    """

    sent_ns: int
    first_ns: int | None = None
    last_ns: int | None = None
    first_chunk_tokens: int = 1
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    server: ServerTimes | None = None
    error: str | None = None


class Client:
    """A session with one server; every completion has a connection of its own, open before it is sent."""

    def __init__(self, url: str, model: str, dialect: Dialect, timeout_s: float) -> None:
        self._url = url
        self._model = model
        self._dialect = dialect
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __aenter__(self) -> Client:
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def tokenize(self, text: str) -> list[int]:
        """The text's ids by the server's tokenizer, without special tokens; raises ToolError."""
        body = {"model": self._model, self._dialect.text_key: text, self._dialect.special_key: False}
        try:
            async with self._session.post(f"{self._url}/tokenize", json=body) as response:
                answer = await response.text()
                tokens = json.loads(answer)["tokens"] if response.status == 200 else None
        except (*REFUSED_BY_NETWORK, ValueError, KeyError) as error:
            answer, tokens = repr(error), None
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise ToolError(
                f"{self._url}/tokenize",
                f"the server gave no token ids: {answer[:ERROR_CHARACTERS]}",
                "see the server's log",
            )
        return tokens

    async def counters(self, before: Counters | None = None, expected_tokens: int = 0) -> Counters:
        """What the server's counters stand at.

        They run behind its answers by a step or two, so with ``before`` they are
        read until the output tokens have grown by ``expected_tokens``, for two
        seconds at most. Raises ToolError if there is no /metrics to read.
        """
        deadline = time.monotonic() + SETTLE_S
        while True:
            found = await self._counters_now()
            if before is None or found.output_tokens is None or before.output_tokens is None:
                return found
            if found.output_tokens - before.output_tokens >= expected_tokens or time.monotonic() > deadline:
                return found
            await asyncio.sleep(SETTLE_STEP_S)

    async def _counters_now(self) -> Counters:
        if not self._dialect.counters:
            return Counters()
        try:
            async with self._session.get(f"{self._url}/metrics") as response:
                return read_counters(await response.text(), self._dialect)
        except REFUSED_BY_NETWORK as error:
            raise ToolError(
                f"{self._url}/metrics", f"it can't be read: {error!r}", "see the server's log"
            ) from error

    async def together(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> tuple[int, list[Reply]]:
        """Send all prompts at once; the moment they were released (ns) and the replies in order.

        What can be done before the release is done before it, and what was
        received is only taken apart when all of it is there.
        """
        barrier = asyncio.Event()

        async def wait_and_send(body: bytes) -> tuple[Reply, list[Piece]]:
            await barrier.wait()
            return await self._complete(body)

        bodies = [self._completion_body(ids, output_tokens) for ids in prompts]
        tasks = [asyncio.create_task(wait_and_send(body)) for body in bodies]
        await asyncio.gather(*(self._open() for _ in bodies))
        gc.disable()
        try:
            released_ns = time.monotonic_ns()
            barrier.set()
            received = await asyncio.gather(*tasks)
        finally:
            gc.enable()
        return released_ns, [_understood(reply, pieces) for reply, pieces in received]

    async def _open(self) -> None:
        """Leave an open connection for the next request; one that can't be had is that request's to tell."""
        try:
            async with self._session.get(f"{self._url}/health") as response:
                await response.read()
        except REFUSED_BY_NETWORK:
            pass

    def _completion_body(self, ids: Sequence[int], output_tokens: int) -> bytes:
        """One greedy, streamed completion of exactly ``output_tokens`` tokens.

        (llama-server ignores ``min_tokens`` and needs none.)
        """
        body = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._dialect.completion,
        }
        return json.dumps(body).encode()

    async def _complete(self, body: bytes) -> tuple[Reply, list[Piece]]:
        """Send one completion; what came when, and what went wrong in the reply's ``error``."""
        url = f"{self._url}/v1/completions"
        pieces: list[Piece] = []
        reply = Reply(time.monotonic_ns())
        try:
            async with self._session.post(url, data=body, headers=JSON) as response:
                if response.status == 200:
                    async for piece in response.content.iter_any():
                        pieces.append((time.monotonic_ns(), piece))
                else:
                    reply.error = f"HTTP {response.status}: {(await response.text())[:ERROR_CHARACTERS]}"
        except TimeoutError:
            reply.error = f"no end within {self._timeout.total:g} s"
        except REFUSED_BY_NETWORK as error:
            reply.error = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
        return reply, pieces


def _understood(reply: Reply, pieces: Sequence[Piece]) -> Reply:
    """Fill in what the stream said; an error that is known already stays the first one."""
    try:
        error = _take(reply, list(_events(pieces)))
    except (ValueError, KeyError, TypeError, AttributeError) as malformed:
        error = f"{type(malformed).__name__}: {malformed}"
    reply.error = reply.error or (error and error[:ERROR_CHARACTERS])
    return reply


def _take(reply: Reply, events: Sequence[Piece]) -> str | None:
    """Times from the first and last chunk with a choice, counts from there to the end; what went wrong.

    Chunks in between are only searched for an error: all that matters of them is
    in the counts.
    """
    for _, data in events:
        if b'"error"' in data and "error" in (chunk := json.loads(data)):
            return f"the server broke off: {json.dumps(chunk['error'], ensure_ascii=False)}"
    chunks = [event for event in events if event[1] != b"[DONE]"]
    for now_ns, data in chunks:
        if (chunk := json.loads(data)).get("choices"):
            reply.first_ns, reply.first_chunk_tokens = now_ns, _tokens_so_far(chunk)
            break
    for now_ns, data in reversed(chunks):
        chunk = json.loads(data)
        _take_counts(chunk, reply)
        if chunk.get("choices"):
            reply.last_ns = now_ns
            break
    if len(chunks) == len(events):
        return "the stream ended without [DONE]"
    return "the server sent no usage" if reply.completion_tokens is None else None


def _tokens_so_far(first: dict[str, Any]) -> int:
    """Tokens out with the first chunk: llama-server's ``timings`` or vLLM's ``token_ids`` tell, else 1."""
    told = (first.get("timings") or {}).get("predicted_n") or len(first["choices"][0].get("token_ids") or ())
    return max(1, told)


def _take_counts(chunk: dict[str, Any], reply: Reply) -> None:
    """Keep the latest counts, chunks coming from the end: vLLM has them in one of their own, at the end."""
    if (usage := chunk.get("usage")) and reply.completion_tokens is None:
        reply.prompt_tokens = usage["prompt_tokens"]
        reply.completion_tokens = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        reply.cached_tokens = details.get("cached_tokens")
    timings = chunk.get("timings") or {}
    if "cache_n" in timings:
        reply.cached_tokens = timings["cache_n"]
    reply.server = reply.server or _server_times(timings, chunk.get("metrics") or {})


def _server_times(timings: dict[str, Any], metrics: dict[str, Any]) -> ServerTimes | None:
    """llama-server's ``timings`` or vLLM's ``metrics`` of a request; null if neither is told.

    llama-server's own rates changed their meaning between versions and are left alone.
    """
    if "predicted_ms" in timings:
        return ServerTimes(
            prefill_ms=timings["prompt_ms"],
            decode_ms=timings["predicted_ms"],
            output_tokens=timings["predicted_n"],
        )
    if metrics.get("generation_time_ms") is not None and metrics.get("time_to_first_token_ms") is not None:
        return ServerTimes(
            prefill_ms=metrics["time_to_first_token_ms"],
            decode_ms=metrics["generation_time_ms"],
            queue_ms=metrics.get("queue_time_ms"),
        )
    return None


def _events(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The stream's events and when their last byte came, cut in bytes so that no character is torn.

    A line is an event: both servers write one ``data:`` (or ``error:``) line
    for each. Yields the text after ``data:`` and an error line as a JSON object.
    """
    rest = b""
    for now_ns, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            name, _, data = line.strip().partition(b":")
            if name == b"data":
                yield now_ns, data.strip()
            elif name == b"error":
                yield now_ns, b'{"error":' + data.strip() + b"}"
