"""The measuring client: ids in, times and the server's own token counts out."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from reproquant.bench.counters import Counters, read_counters
from reproquant.bench.measurement import ServerTimes
from reproquant.bench.wire import Exchange, Piece, exchange, response
from reproquant.engines.base import Dialect
from reproquant.errors import ToolError

ERROR_CHARACTERS = 500
SETTLE_S = 2.0
SETTLE_STEP_S = 0.01
REFUSED_BY_NETWORK = (aiohttp.ClientError, TimeoutError, OSError)


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
    """A session with one server; ``bench.wire`` carries what is timed."""

    def __init__(self, url: str, model: str, dialect: Dialect, timeout_s: float) -> None:
        self._url = url
        self._model = model
        self._dialect = dialect
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Client:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout_s))
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
        except (*REFUSED_BY_NETWORK, ValueError, KeyError, TypeError) as error:
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
                response.raise_for_status()
                return read_counters(await response.text(), self._dialect)
        except (*REFUSED_BY_NETWORK, ValueError) as error:
            raise ToolError(
                f"{self._url}/metrics", f"it can't be read: {error!r}", "see the server's log"
            ) from error

    async def together(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> tuple[int, list[Reply]]:
        """Send all prompts at once; the moment they were released (ns) and the replies in order.

        What can be done before the release is done before it, and what was
        received is only taken apart when all of it is there. Nothing else of the
        event loop runs meanwhile.
        """
        server = urlsplit(self._url)
        assert server.hostname and server.port
        requests = [self._completion(server.netloc, ids, output_tokens) for ids in prompts]
        released_ns, exchanges = exchange((server.hostname, server.port), requests, self._timeout_s)
        return released_ns, [_understood(each) for each in exchanges]

    def _completion(self, host: str, ids: Sequence[int], output_tokens: int) -> bytes:
        """The HTTP request of one greedy, streamed completion of exactly ``output_tokens`` tokens.

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
        content = json.dumps(body).encode()
        head = (
            "POST /v1/completions HTTP/1.1",
            f"Host: {host}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
            "Connection: close",
        )
        return "\r\n".join((*head, "", "")).encode() + content


def _understood(received: Exchange) -> Reply:
    """What an exchange says; an error of the connection is told before one of the stream."""
    reply = Reply(received.sent_ns)
    try:
        error = _answer(reply, received.pieces)
    except (ValueError, KeyError, TypeError, AttributeError) as malformed:
        error = f"{type(malformed).__name__}: {malformed}"
    told = received.error or error
    reply.error = told and told[:ERROR_CHARACTERS]
    return reply


def _answer(reply: Reply, pieces: Sequence[Piece]) -> str | None:
    """Fill in what the answer says; what is wrong with it."""
    answer = response(pieces)
    if answer is None:
        return "the server closed the connection without an answer"
    if answer.status != 200:
        text = b"".join(piece for _, piece in answer.body).decode(errors="replace")
        return f"HTTP {answer.status}: {text}"
    return _take(reply, list(_events(answer.body)))


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
    told = _count(first.get("timings") or {}, "predicted_n")
    return max(1, told or len(first["choices"][0].get("token_ids") or ()))


def _take_counts(chunk: dict[str, Any], reply: Reply) -> None:
    """Keep the latest counts, chunks coming from the end: vLLM has them in one of their own, at the end."""
    if (usage := chunk.get("usage")) and reply.completion_tokens is None:
        reply.prompt_tokens = _count(usage, "prompt_tokens")
        reply.completion_tokens = _count(usage, "completion_tokens")
        reply.cached_tokens = _count(usage.get("prompt_tokens_details") or {}, "cached_tokens")
    timings = chunk.get("timings") or {}
    if "cache_n" in timings:
        reply.cached_tokens = _count(timings, "cache_n")
    reply.server = reply.server or _server_times(timings, chunk.get("metrics") or {})


def _count(told: dict[str, Any], name: str) -> int | None:
    """A count that the server tells, null if it doesn't; raises TypeError for what is no whole number."""
    value = told.get(name)
    if value is None or type(value) is int:
        return value
    raise TypeError(f"{name} is {value!r}")


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
