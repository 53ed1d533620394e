"""What the measuring client costs and how exact it is, against a mock server with known timing.

    python benchmarks/client.py [--streams 1 4 16] [--tokens 600] [--tok-per-s 300]

Nothing is generated: the mock server of the tests sends tokens at that rate.
Prints, for each number of streams at once, the client's CPU time as a share of
one core, and its error in time to first token and decode rate against the
times at which the server really sent.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import typer

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests"), str(ROOT / "tests/unit")]

from mock_engine import MockEngine, subject  # noqa: E402
from reproquant.bench.client import Client, Reply  # noqa: E402
from reproquant.engines.base import Endpoint  # noqa: E402

TTFT_MS = 200.0
PROMPT = list(range(100, 612))
HEAD = ("streams", "client CPU", "TTFT error, ms", "decode error", "start skew, ms")


async def measure(endpoint: Endpoint, streams: int, tokens: int) -> tuple[float, list[Reply]]:
    """CPU seconds a second of wall time, and the replies."""
    async with Client(endpoint.url, "steady", MockEngine.dialect, timeout_s=120) as client:
        await client.together([PROMPT], 8)
        wall, cpu = time.monotonic(), time.process_time()
        _, replies = await client.together([PROMPT] * streams, tokens)
        return (time.process_time() - cpu) / (time.monotonic() - wall), replies


def errors(reply: Reply) -> tuple[float, float]:
    """Of time to first token, in ms, and of the decode rate, as a part of it."""
    if reply.error or not (reply.server and reply.first_ns and reply.last_ns and reply.completion_tokens):
        raise SystemExit(f"error: a request broke: {reply.error}")
    seen_ms = (reply.last_ns - reply.first_ns) / 1e6
    steps = (reply.completion_tokens - reply.first_chunk_tokens) / (reply.completion_tokens - 1)
    late_ms = (reply.first_ns - reply.sent_ns) / 1e6 - reply.server.prefill_ms
    return late_ms, steps * reply.server.decode_ms / seen_ms - 1


def main(streams: list[int] = [1, 4, 16], tokens: int = 600, tok_per_s: float = 300.0) -> None:  # noqa: B006
    engine = MockEngine(times_ms=(TTFT_MS, 1000 / tok_per_s))
    print(f"{tokens} tokens a stream at {tok_per_s:g} tok/s each")
    print(" ".join(f"{word:>15}" for word in HEAD))
    with tempfile.TemporaryDirectory() as folder:
        try:
            endpoint = engine.launch(engine.plan(subject("steady")), Path(folder) / "log")
            for count in streams:
                share, replies = asyncio.run(measure(endpoint, count, tokens))
                late, rate = zip(*map(errors, replies), strict=True)
                sent = [reply.sent_ns for reply in replies]
                skew_ms = (max(sent) - min(sent)) / 1e6
                worst = max(rate, key=abs)
                print(
                    f"{count:>15} {share:>15.1%} {median(late):>15.2f} {worst:>15.3%} {skew_ms:>15.2f}",
                    flush=True,
                )
        finally:
            engine.stop()


if __name__ == "__main__":
    typer.run(main)
