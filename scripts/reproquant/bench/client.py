"""The measuring client: ids in, times and the server's own token counts out."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

from reproquant.engines.base import Dialect
from reproquant.errors import ToolError

ERROR_CHARACTERS = 500
JSON = {"Content-Type": "application/json"}


@dataclass
class Reply:
    """One answered request; monotonic nanoseconds, null where it didn't get so far.

    ``first_ns`` and ``last_ns`` are the arrivals of the first and the last chunk
    with a choice: one that carries text, an unfinished character's empty one, or
    the finish reason, with which the last token is out. The counts are
    the server's, from ``usage``: chunks hold any number of tokens.
    llama-server sends no chunk for a token that ends inside a character, so a
    first token of that kind makes ``first_ns`` late by a token.
    """

    sent_ns: int
    first_ns: int | None = None
    last_ns: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None


class Client:
    """A session with one server; every request has a connection of its own.

    A fresh connection costs the loopback a fraction of a millisecond, and no
    request can meet one that the server is just closing.
    """

    def __init__(self, url: str, model: str, dialect: Dialect, timeout_s: float) -> None:
        self._url = url
        self._model = model
        self._dialect = dialect
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __aenter__(self) -> Client:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
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
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            answer, tokens = repr(error), None
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise ToolError(
                f"{self._url}/tokenize",
                f"the server gave no token ids: {answer[:ERROR_CHARACTERS]}",
                "see the server's log",
            )
        return tokens

    async def cache_hits(self) -> float | None:
        """The server's counter of prompt tokens taken from a cache; null if it has none."""
        if not self._dialect.cache_counters:
            return None
        async with self._session.get(f"{self._url}/metrics") as response:
            text = await response.text()
        return metric(text, self._dialect.cache_counters)

    async def together(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> tuple[int, list[Reply]]:
        """Send all prompts at once; the moment they were released (ns) and the replies in order.

        What can be done before the release is done before it.
        """
        barrier = asyncio.Event()

        async def wait_and_send(body: bytes) -> Reply:
            await barrier.wait()
            return await self._complete(body)

        bodies = [self._completion_body(ids, output_tokens) for ids in prompts]
        tasks = [asyncio.create_task(wait_and_send(body)) for body in bodies]
        await asyncio.sleep(0)
        released_ns = time.monotonic_ns()
        barrier.set()
        return released_ns, list(await asyncio.gather(*tasks))

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

    async def _complete(self, body: bytes) -> Reply:
        """Send one completion and read its stream; what goes wrong stands in the reply's ``error``."""
        url = f"{self._url}/v1/completions"
        reply = Reply(time.monotonic_ns())
        try:
            async with self._session.post(url, data=body, headers=JSON) as response:
                if response.status == 200:
                    await _read(response, reply)
                else:
                    reply.error = f"HTTP {response.status}: {(await response.text())[:ERROR_CHARACTERS]}"
        except TimeoutError:
            reply.error = f"no end within {self._timeout.total:g} s"
        except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
            reply.error = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
        return reply


async def _read(response: aiohttp.ClientResponse, reply: Reply) -> None:
    done = False
    async for now_ns, data in _events(response.content):
        if data == b"[DONE]":
            done = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            reply.error = f"the server broke off: {json.dumps(chunk['error'], ensure_ascii=False)}"[
                :ERROR_CHARACTERS
            ]
            return
        if chunk.get("choices"):
            reply.first_ns = reply.first_ns or now_ns
            reply.last_ns = now_ns
        _take_counts(chunk, reply)
    if not done:
        reply.error = "the stream ended without [DONE]"
    elif reply.completion_tokens is None:
        reply.error = "the server sent no usage"


def _take_counts(chunk: dict[str, Any], reply: Reply) -> None:
    """Keep the latest counts: vLLM sends usage in a chunk of its own, llama-server in its last one."""
    if usage := chunk.get("usage"):
        reply.prompt_tokens = usage["prompt_tokens"]
        reply.completion_tokens = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        reply.cached_tokens = details.get("cached_tokens", reply.cached_tokens)
    if "cache_n" in (timings := chunk.get("timings") or {}):
        reply.cached_tokens = timings["cache_n"]


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """The stream's events and when their last byte came, cut in bytes so that no character is torn.

    A line is an event: both servers write one ``data:`` (or ``error:``) line
    for each. Yields the text after ``data:`` and an error line as a JSON object.
    """
    rest = b""
    async for piece in content.iter_any():
        now_ns = time.monotonic_ns()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            name, _, data = line.strip().partition(b":")
            if name == b"data":
                yield now_ns, data.strip()
            elif name == b"error":
                yield now_ns, b'{"error":' + data.strip() + b"}"


def metric(text: str, names: Sequence[str]) -> float | None:
    """The sum over all labels of the first of ``names`` that a Prometheus text holds; null if none."""
    for name in names:
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith((f"{name} ", f"{name}{{"))
        ]
        if values:
            return sum(values)
    return None
