"""A mock token server with known timing, for tests and for benchmarks of the client only.

It generates nothing: token i of a completion leaves at ttft + i * itl after the
request came. The request's ``model`` names how it behaves (see BEHAVIOURS), so
one server serves every test. What it really did, by its own clock, is told at
``/served``. A token of its tokenizer is a character.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

TEXT = "量"
SO_TIMESTAMPNS = 35  # Linux's asm-generic/socket.h
CACHED = 16
FIRST_ROUND = 3
"""How many requests come before the rounds, where the warm-up of the fault suite has three lone ones."""


def always(number: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Behaviour:
    """How a completion is answered; the defaults are vLLM at its best.

    ``chunk`` is tokens a chunk, 0 all in one; for the first ``withheld`` tokens
    no chunk is sent. ``usage`` is a chunk of its own, in the last one, or not sent.
    ``tells`` says by whose words the server's times and the tokens in a chunk are
    told. ``slowness`` multiplies the decode steps of the behaviour's n-th request,
    counted from 0. What the server tells of itself is multiplied by ``told_...``.
    A request that ``when`` says no to is answered as if nothing were wrong.
    """

    chunk: int = 1
    withheld: int = 0
    torn: bool = False
    empty: bool = False
    usage: Literal["own", "last", "none"] = "own"
    tells: Literal["vllm", "llama", "nothing"] = "vllm"
    cached: int | None = 0
    hits: int = 0
    preemptions: int = 0
    surplus_prompt: int = 0
    tokens: Callable[[int], int] = lambda asked: asked
    slowness: Callable[[int], float] = always
    stall_s: float = 0.0
    stalls: Callable[[int], bool] = lambda number: True
    told_prefill: float = 1.0
    told_decode: float = 1.0
    told_tokens: float = 1.0
    end: Literal["done", "error", "cut"] = "done"
    when: Callable[[int], bool] = lambda number: True


BEHAVIOURS = {
    "steady": Behaviour(),
    "within": Behaviour(usage="last", tells="llama"),
    "chunked": Behaviour(chunk=4),
    "blind": Behaviour(chunk=4, tells="nothing"),
    "withheld": Behaviour(withheld=2, usage="last", tells="llama"),
    "lump": Behaviour(chunk=0),
    "torn": Behaviour(torn=True),
    "empty": Behaviour(empty=True),
    "short": Behaviour(tokens=lambda asked: asked - 1),
    "clamped": Behaviour(tokens=lambda asked: min(asked, 4)),
    "surplus": Behaviour(surplus_prompt=1),
    "cached": Behaviour(cached=CACHED),
    "counter": Behaviour(cached=None, hits=CACHED),
    "preempting": Behaviour(preemptions=1, when=lambda number: number == FIRST_ROUND),
    "silent": Behaviour(cached=None, tells="nothing"),
    "short-at-first": Behaviour(tokens=lambda asked: asked - 1, when=lambda number: number == 1),
    "cached-at-first": Behaviour(cached=CACHED, when=lambda number: number == 1),
    "cached-once": Behaviour(cached=CACHED, when=lambda number: number == FIRST_ROUND + 3),
    "short-once": Behaviour(tokens=lambda asked: asked - 1, when=lambda number: number == FIRST_ROUND + 3),
    "untold-once": Behaviour(cached=None, when=lambda number: number == FIRST_ROUND + 3),
    "jittery": Behaviour(slowness=lambda number: 1 + number % 2),
    "drifting": Behaviour(slowness=lambda number: 1 + number / 2),
    "cold": Behaviour(slowness=lambda number: 3 ** max(0, 2 - number)),
    "stalling": Behaviour(stall_s=0.2, stalls=lambda number: number == 4),
    "boasting": Behaviour(told_decode=0.2),
    "early": Behaviour(told_prefill=10),
    "late": Behaviour(told_prefill=0.1),
    "miscounting": Behaviour(told_tokens=2),
    "breaks": Behaviour(end="error"),
    "cut": Behaviour(end="cut"),
    "uncounted": Behaviour(usage="none"),
}
OTHERS = {
    "refused": "HTTP 400",
    "hangs": "no token ever",
    "dies": "the seventh request ends the process, with words in its log",
}


class Arrival(asyncio.BufferedProtocol):
    """aiohttp's protocol of a connection, and when the last bytes of a request reached it (monotonic ns).

    That is the kernel's stamp where it has one: this process may have been busy. Of the two clocks the wall's
    is read first: a pause between them makes a request come late, never before it was sent.
    """

    def __init__(self, served: asyncio.Protocol) -> None:
        self._served = served
        self._buffer = bytearray(65536)
        self.came_ns = 0
        for name in ("eof_received", "pause_writing", "resume_writing"):
            setattr(self, name, getattr(served, name))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport.get_extra_info("socket").dup()
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._served.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._socket.close()
        self._served.connection_lost(error)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Asked right before the bytes are read, which are still there to look at."""
        with suppress(OSError):
            _, ancillary, _, _ = self._socket.recvmsg(len(self._buffer), 64, socket.MSG_PEEK)
            wall_ns, self.came_ns = time.time_ns(), time.monotonic_ns()
            for level, kind, stamp in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                    seconds, nanoseconds = struct.unpack("@ll", stamp)
                    self.came_ns += seconds * 1_000_000_000 + nanoseconds - wall_ns
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self._served.data_received(bytes(self._buffer[:count]))


class MockServer:
    def __init__(self, ttft_s: float, itl_s: float, prompts: Path | None = None) -> None:
        self.ttft_s, self.itl_s = ttft_s, itl_s
        self.prompts = prompts
        self.requests: Counter[str] = Counter()
        self.served: list[dict[str, Any]] = []
        self.hits = self.preemptions = 0
        self.tokens = self.prefill_s = self.decode_s = 0.0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/served", self.tell_served)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/v1/completions", self.complete)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def metrics(self, request: web.Request) -> web.Response:
        lines = ("# HELP", f'mock:hits_total{{model="a"}} {self.hits}', "mock:hits_created 1.7e9")
        sums = (f"mock:prefill_seconds_sum {self.prefill_s}", f"mock:decode_seconds_sum {self.decode_s}")
        counts = (f"mock:tokens_total {self.tokens}", f"mock:preemptions_total {self.preemptions}", "")
        return web.Response(text="\n".join((*lines, *sums, *counts)))

    async def tell_served(self, request: web.Request) -> web.Response:
        """Every completion so far: its ids, when it came, when its first and last token left (monotonic ns)."""
        return web.json_response(self.served)

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["add_special_tokens"]:
            return web.Response(status=400)
        return web.json_response({"tokens": [ord(character) for character in body["prompt"]]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        came_ns = request.transport.get_protocol().came_ns
        name = body["model"]
        if self.prompts:
            with self.prompts.open("a") as file:
                print(json.dumps(body["prompt"]), file=file)
        number = self.requests[name]
        self.requests[name] += 1
        if name == "refused":
            return web.Response(status=400, text="the mock refuses")
        if name == "dies" and number == 6:
            print("RuntimeError: the mock was told to die", file=sys.stderr, flush=True)
            os._exit(3)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while name == "hangs" and request.transport:
            await asyncio.sleep(0.05)
        answer = Answer(BEHAVIOURS.get(name, Behaviour()), len(body["prompt"]), body["max_tokens"], number)
        self.hits += answer.behaviour.hits
        self.preemptions += answer.behaviour.preemptions
        await answer.stream(response, came_ns / 1e9, self.ttft_s, self.itl_s)
        self.served.append(
            {
                "response_id": answer.id,
                "request_id": request.headers.get("X-Request-ID"),
                "prompt_start": body["prompt"][0],
                "came_ns": came_ns,
                "first_ns": answer.first_ns,
                "last_ns": answer.last_ns,
                "tokens": answer.tokens,
            }
        )
        self.prefill_s += answer.first_s
        self.decode_s += answer.last_s - answer.first_s
        self.tokens += answer.tokens * answer.behaviour.told_tokens
        return response


class Answer:
    """One completion: its chunks in time, then usage and what the server says of itself."""

    def __init__(self, behaviour: Behaviour, prompt_tokens: int, asked: int, number: int) -> None:
        self.behaviour = behaviour if behaviour.when(number) else Behaviour()
        self.prompt_tokens = prompt_tokens + behaviour.surplus_prompt
        self.tokens = behaviour.tokens(asked)
        self.number = number
        self.id = f"cmpl-{uuid.uuid4().hex}"
        self._head = {"id": self.id, "object": "text_completion"}
        self.first_s = self.last_s = 0.0
        self.first_ns = self.last_ns = 0

    async def stream(self, response: web.StreamResponse, came: float, ttft_s: float, itl_s: float) -> None:
        behaviour = self.behaviour
        step_s = itl_s * behaviour.slowness(self.number)
        size = behaviour.chunk or self.tokens
        for first in range(0, self.tokens, size):
            last = min(first + size, self.tokens) - 1
            if behaviour.end != "done" and first >= self.tokens // 2:
                break
            due = came + ttft_s + last * step_s
            if first >= self.tokens // 2 and behaviour.stalls(self.number):
                due += behaviour.stall_s
            chunk = self._chunk(first, last)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.last_ns = time.monotonic_ns()
            self.first_ns = self.first_ns or self.last_ns
            self.last_s = self.last_ns / 1e9 - came
            self.first_s = self.first_s or ttft_s + self.last_s - (due - came)
            if last >= behaviour.withheld:
                await self._write(response, chunk, step_s / 4)
        for event in self._end():
            await response.write(event)

    async def _write(self, response: web.StreamResponse, event: bytes, pause_s: float) -> None:
        if not self.behaviour.torn:
            await response.write(event)
            return
        middle = event.index(TEXT.encode()) + 1
        await response.write(event[:middle])
        await asyncio.sleep(pause_s)
        await response.write(event[middle:])

    def _chunk(self, first: int, last: int) -> bytes:
        text = "" if self.behaviour.empty and first % 2 == 0 else TEXT * (last + 1 - first)
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": None}
        if self.behaviour.tells == "vllm":
            choice["token_ids"] = list(range(first, last + 1))
        chunk: dict[str, Any] = {**self._head, "choices": [choice]}
        if self.behaviour.tells == "llama":
            chunk["timings"] = {"predicted_n": last + 1}
        return _event(chunk)

    def _end(self) -> list[bytes]:
        done = b"data: [DONE]\n\n"
        if self.behaviour.end == "error":
            return [_event({"error": {"message": "the mock broke", "code": 500}}), done]
        if self.behaviour.end == "cut":
            return []
        if self.behaviour.usage == "none":
            return [done]
        usage: dict[str, Any] = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens}
        if self.behaviour.cached is not None and self.behaviour.tells != "llama":
            usage["prompt_tokens_details"] = {"cached_tokens": self.behaviour.cached}
        last = [{"index": 0, "text": "", "finish_reason": "length"}]
        choices = last if self.behaviour.usage == "last" else []
        return [_event({**self._head, "choices": choices, "usage": usage, **self._told()}), done]

    def _told(self) -> dict[str, Any]:
        """The server's own times of the request: when its tokens were really out, not when they were due."""
        prefill_ms = 1000 * self.first_s * self.behaviour.told_prefill
        decode_ms = 1000 * (self.last_s - self.first_s) * self.behaviour.told_decode
        if self.behaviour.tells == "llama":
            own = {"prompt_ms": prefill_ms, "predicted_ms": decode_ms, "predicted_n": self.tokens}
            return {"timings": {**own, "cache_n": self.behaviour.cached, "predicted_per_second": 1e6}}
        if self.behaviour.tells == "vllm":
            return {"metrics": {"time_to_first_token_ms": prefill_ms, "generation_time_ms": decode_ms}}
        return {}


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


async def serve(server: MockServer, port: int) -> None:
    """Serve until the process is ended."""
    runner = web.AppRunner(server.app())
    await runner.setup()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Arrival(runner.server()), "127.0.0.1", port)
    await listener.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ttft-ms", type=float, default=60)
    parser.add_argument("--itl-ms", type=float, default=6)
    parser.add_argument("--refuse", help="print this and end with code 1 instead of serving")
    parser.add_argument("--sleep", action="store_true", help="never serve")
    parser.add_argument(
        "--worker", type=Path, help="start a process as vLLM does; its id goes into this file"
    )
    parser.add_argument("--prompts", type=Path, help="a file that every prompt's ids are appended to")
    arguments = parser.parse_args()
    if arguments.refuse:
        print(f"loading\n{arguments.refuse}\nRuntimeError: Engine core initialization failed", flush=True)
        raise SystemExit(1)
    if arguments.worker:
        worker = subprocess.Popen(["sleep", "60"])
        arguments.worker.write_text(str(worker.pid))
    if arguments.sleep:
        time.sleep(60)
    server = MockServer(arguments.ttft_ms / 1000, arguments.itl_ms / 1000, arguments.prompts)
    asyncio.run(serve(server, arguments.port))


if __name__ == "__main__":
    main()
