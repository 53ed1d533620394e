"""The measuring client against a mock server with known timing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from mock_engine import ITL_MS, TTFT_MS, MockEngine, subject
from reproquant.bench.client import Client, Reply, _understood
from reproquant.bench.counters import Counters, metric
from reproquant.bench.wire import Exchange
from reproquant.engines.base import Endpoint
from reproquant.errors import ToolError

IDS = list(range(100, 132))
TOKENS = 12


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    engine = MockEngine()
    try:
        yield engine.launch(engine.plan(subject("steady")), tmp_path_factory.mktemp("mock") / "log")
    finally:
        engine.stop()


def ask(endpoint: Endpoint, behaviour: str, timeout_s: float = 10, count: int = 1) -> tuple[int, list[Reply]]:
    async def talk() -> tuple[int, list[Reply]]:
        async with Client(endpoint.url, behaviour, MockEngine.dialect, timeout_s) as client:
            return await client.together([IDS] * count, TOKENS)

    return asyncio.run(talk())


def one(endpoint: Endpoint, behaviour: str, timeout_s: float = 10) -> Reply:
    return ask(endpoint, behaviour, timeout_s)[1][0]


def times_ms(reply: Reply) -> tuple[float, float]:
    assert reply.first_ns and reply.last_ns
    return (reply.first_ns - reply.sent_ns) / 1e6, (reply.last_ns - reply.first_ns) / 1e6 / (TOKENS - 1)


@pytest.mark.parametrize("behaviour", ["steady", "within", "torn", "empty"])
def test_the_known_times_and_counts_are_recovered_from_every_way_of_streaming(
    endpoint: Endpoint, behaviour: str
) -> None:
    reply = one(endpoint, behaviour)
    ttft, itl = times_ms(reply)
    assert reply.error is None
    assert TTFT_MS - 1 <= ttft <= TTFT_MS + 60
    assert ITL_MS - 5 <= itl <= ITL_MS + 6
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (len(IDS), TOKENS, 0)


def test_tokens_are_counted_from_usage_when_a_chunk_holds_four(endpoint: Endpoint) -> None:
    reply = one(endpoint, "chunked")
    assert reply.completion_tokens == TOKENS and reply.error is None
    assert times_ms(reply)[0] >= TTFT_MS + 3 * ITL_MS - 1
    assert reply.first_chunk_tokens == 4


def test_tokens_that_llama_server_sent_no_chunk_for_are_told_by_its_timings(endpoint: Endpoint) -> None:
    reply = one(endpoint, "withheld")
    assert (reply.first_chunk_tokens, reply.completion_tokens) == (3, TOKENS)


@pytest.mark.parametrize(("behaviour", "tokens"), [("steady", None), ("within", TOKENS)])
def test_the_servers_own_times_are_kept_and_its_rates_are_not(
    endpoint: Endpoint, behaviour: str, tokens: int | None
) -> None:
    server = one(endpoint, behaviour).server
    assert server and server.output_tokens == tokens and server.mean_of == 1
    assert TTFT_MS <= server.prefill_ms < TTFT_MS + 60
    assert abs(server.decode_ms - (TOKENS - 1) * ITL_MS) < 30


def test_nothing_is_made_up_for_a_server_that_tells_no_times(endpoint: Endpoint) -> None:
    reply = one(endpoint, "blind")
    assert reply.server is None and reply.first_chunk_tokens == 1


def test_a_reply_in_one_chunk_has_no_time_between_its_tokens(endpoint: Endpoint) -> None:
    reply = one(endpoint, "lump")
    assert reply.first_ns == reply.last_ns and reply.completion_tokens == TOKENS


def test_nothing_is_said_about_caches_when_the_server_says_nothing(endpoint: Endpoint) -> None:
    assert one(endpoint, "silent").cached_tokens is None


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("breaks", "the mock broke"),
        ("cut", "ended without [DONE]"),
        ("uncounted", "no usage"),
        ("refused", "HTTP 400: the mock refuses"),
    ],
)
def test_a_broken_answer_is_kept_as_an_error_in_the_servers_words(
    endpoint: Endpoint, behaviour: str, words: str
) -> None:
    assert words in (one(endpoint, behaviour).error or "")


def test_a_request_without_an_end_is_given_up_after_the_timeout(endpoint: Endpoint) -> None:
    reply = one(endpoint, "hangs", timeout_s=0.3)
    assert reply.error == "no end within 0.3 s" and reply.first_ns is None


def test_all_requests_of_a_round_are_released_together_and_served_at_once(endpoint: Endpoint) -> None:
    released_ns, replies = ask(endpoint, "steady", count=4)
    assert all(0 <= reply.sent_ns - released_ns < 50e6 for reply in replies)
    assert max(reply.sent_ns for reply in replies) < min(reply.first_ns or 0 for reply in replies)


def test_a_server_that_is_gone_gives_an_error_and_no_exception() -> None:
    reply = one(Endpoint("http://127.0.0.1:9", 9, 0.0), "steady")
    assert "Connect" in (reply.error or "")


def test_text_becomes_ids_without_special_tokens(endpoint: Endpoint) -> None:
    async def talk() -> list[int]:
        async with Client(endpoint.url, "steady", MockEngine.dialect, 10) as client:
            return await client.tokenize("量具")

    assert asyncio.run(talk()) == [ord("量"), ord("具")]


def test_a_server_without_tokenize_is_told_as_a_tool_error(tmp_path: Path) -> None:
    async def talk() -> None:
        async with Client("http://127.0.0.1:9", "steady", MockEngine.dialect, 1) as client:
            await client.tokenize("量具")

    with pytest.raises(ToolError, match="no token ids"):
        asyncio.run(talk())


def test_a_metric_is_summed_over_its_labels_and_not_over_longer_names() -> None:
    text = 'hits_total{a="1"} 2.0\nhits_total{a="2"} 3\nhits_total_created 9\n# hits_total 7\n'
    assert metric(text, ("other", "hits_total")) == 5
    assert metric(text, ("other",)) is None


def test_the_growth_of_counters_gives_the_mean_times_of_a_rounds_requests() -> None:
    before = Counters(output_tokens=10, prefill_s=1.0, decode_s=2.0)
    growth = Counters(output_tokens=26, prefill_s=1.4, decode_s=3.0).since(before)
    times = growth.times(2)
    assert growth.output_tokens == 16 and growth.cached_tokens is None and times
    assert (times.prefill_ms, times.decode_ms, times.mean_of) == pytest.approx((200, 500, 2))
    assert Counters(output_tokens=1).times(1) is None


def test_counters_are_read_again_until_they_have_caught_up(endpoint: Endpoint) -> None:
    async def talk() -> float | None:
        async with Client(endpoint.url, "steady", MockEngine.dialect, 10) as client:
            before = await client.counters()
            answer = asyncio.create_task(client.together([IDS], TOKENS))
            growth = (await client.counters(before, TOKENS)).since(before)
            await answer
            return growth.output_tokens

    assert asyncio.run(talk()) == TOKENS


@contextmanager
def always(status: int, body: bytes) -> Iterator[str]:
    """A server that has one answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("body", [b"[1, 2]", b'"tokens"', b'{"tokens": "ids"}', b"\xff\xfe", b"null"])
def test_a_tokenizer_that_answers_nonsense_is_told_as_a_tool_error(body: bytes) -> None:
    async def talk(url: str) -> None:
        async with Client(url, "steady", MockEngine.dialect, 5) as client:
            await client.tokenize("量具")

    with always(200, body) as url, pytest.raises(ToolError, match="no token ids"):
        asyncio.run(talk(url))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"not here"),
        (501, b'{"error": "start it with --metrics"}'),
        (500, b""),
        (200, b"mock:hits_total many\n"),
        (200, b"mock:hits_total \xff\n"),
    ],
)
def test_counters_that_cannot_be_read_are_a_tool_error_and_not_taken_for_none(
    status: int, body: bytes
) -> None:
    """Counters that came once and then no more would leave the growth at 0, a proof of nothing."""

    async def talk(url: str) -> None:
        async with Client(url, "steady", MockEngine.dialect, 5) as client:
            await client.counters()

    with always(status, body) as url, pytest.raises(ToolError, match="can't be read") as error:
        asyncio.run(talk(url))
    assert error.value.where.endswith("/metrics")


@pytest.mark.parametrize("usage", ['"many"', "1.5", "[8]", "true"])
def test_counts_that_are_no_numbers_are_an_error_of_the_answer(usage: str) -> None:
    chunks = (
        'data: {"choices": [{"text": "a"}]}',
        f'data: {{"choices": [], "usage": {{"prompt_tokens": 8, "completion_tokens": {usage}}}}}',
        "data: [DONE]",
    )
    text = "HTTP/1.1 200 OK\r\n\r\n" + "\n\n".join((*chunks, ""))
    reply = _understood(Exchange(b"", 1, [(2, text.encode())]))
    assert "completion_tokens" in (reply.error or "") and reply.completion_tokens is None
