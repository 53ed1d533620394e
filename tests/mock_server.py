"""A mock token server with known timing, for tests of the client and the protocol only.

It generates nothing: token i of a completion leaves at ttft + i * itl after the
request came. The request's ``model`` names how it behaves (see BEHAVIOURS), so
one server serves every test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from aiohttp import web

TEXT = "量"
BEHAVIOURS = {
    "steady": "one token a chunk, usage in a chunk of its own, as vLLM does",
    "within": "usage and timings in the last chunk that has a choice, as llama-server does",
    "chunked": "four tokens a chunk",
    "lump": "all tokens in one chunk",
    "torn": "every network write ends inside a character",
    "empty": "every other chunk has an empty text",
    "short": "one token fewer than asked for, and no error",
    "surplus": "one more prompt token than was sent",
    "cached": "16 prompt tokens came from a cache, says usage",
    "counter": "16 prompt tokens came from a cache, says only /metrics",
    "silent": "nothing about caches",
    "jittery": "every other request decodes at half the speed",
    "breaks": "an error event in the middle of the stream",
    "cut": "the stream ends without [DONE]",
    "uncounted": "no usage at all",
    "refused": "HTTP 400",
    "hangs": "no token ever",
    "dies": "the fourth request ends the process, with words in its log",
}


class MockServer:
    def __init__(self, ttft_s: float, itl_s: float) -> None:
        self.ttft_s, self.itl_s = ttft_s, itl_s
        self.requests = 0
        self.hits = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/v1/completions", self.complete)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            text=f'# HELP\nmock:hits_total{{model="a"}} {self.hits}\nmock:hits_created 1.7e9\n'
        )

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["add_special_tokens"]:
            return web.Response(status=400)
        return web.json_response({"tokens": [ord(character) for character in body["prompt"]]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        came = time.monotonic()
        body = await request.json()
        behaviour = body["model"]
        self.requests += 1
        if behaviour == "refused":
            return web.Response(status=400, text="the mock refuses")
        if behaviour == "dies" and self.requests == 4:
            print("RuntimeError: the mock was told to die", file=sys.stderr, flush=True)
            os._exit(3)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while behaviour == "hangs" and request.transport:
            await asyncio.sleep(0.05)
        itl_s = self.itl_s * (2 if behaviour == "jittery" and self.requests % 2 else 1)
        tokens = body["max_tokens"] - (behaviour == "short")
        await self._stream(response, behaviour, tokens, came, itl_s)
        if behaviour == "counter":
            self.hits += 16
        for event in self._end(behaviour, len(body["prompt"]), tokens):
            await response.write(event)
        return response

    async def _stream(
        self, response: web.StreamResponse, behaviour: str, tokens: int, came: float, itl_s: float
    ) -> None:
        size = {"chunked": 4, "lump": tokens}.get(behaviour, 1)
        for first in range(0, tokens, size):
            last = min(first + size, tokens) - 1
            await asyncio.sleep(max(0.0, came + self.ttft_s + last * itl_s - time.monotonic()))
            if behaviour in ("breaks", "cut") and first >= tokens // 2:
                return
            text = "" if behaviour == "empty" and first % 2 else TEXT * (last + 1 - first)
            event = _event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})
            middle = event.index(TEXT.encode()) + 1 if behaviour == "torn" else len(event)
            await response.write(event[:middle])
            if behaviour == "torn":
                await asyncio.sleep(itl_s / 4)
                await response.write(event[middle:])

    def _end(self, behaviour: str, sent: int, tokens: int) -> list[bytes]:
        done = b"data: [DONE]\n\n"
        prompt = sent + (behaviour == "surplus")
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        cached = {"prompt_tokens_details": {"cached_tokens": 16 if behaviour == "cached" else 0}}
        if behaviour == "breaks":
            return [_event({"error": {"message": "the mock broke", "code": 500}}), done]
        if behaviour == "cut":
            return []
        if behaviour == "uncounted":
            return [done]
        if behaviour == "within":
            last = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage}
            return [_event({**last, "timings": {"cache_n": 0, "prompt_n": sent}}), done]
        if behaviour in ("silent", "counter"):
            return [_event({"choices": [], "usage": usage}), done]
        return [_event({"choices": [], "usage": {**usage, **cached}}), done]


def _event(data: dict[str, object]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


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
    arguments = parser.parse_args()
    if arguments.refuse:
        print(f"loading\n{arguments.refuse}\nRuntimeError: Engine core initialization failed", flush=True)
        raise SystemExit(1)
    if arguments.worker:
        worker = subprocess.Popen(["sleep", "60"])
        arguments.worker.write_text(str(worker.pid))
    if arguments.sleep:
        time.sleep(60)
    server = MockServer(arguments.ttft_ms / 1000, arguments.itl_ms / 1000)
    web.run_app(server.app(), host="127.0.0.1", port=arguments.port, print=None, shutdown_timeout=0)


if __name__ == "__main__":
    main()
