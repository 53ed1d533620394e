"""What the client reads off its sockets: when it came, and what of it is the answer's body."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from reproquant.bench import wire

HEALTHY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
REQUEST = b"POST / HTTP/1.1\r\nConnection: close\r\n\r\n"


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """A server that is healthy and then lets ``answer`` have the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(HEALTHY)
                connection.recv(1000)
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[:2]
        finally:
            thread.join()


def test_an_arrival_is_when_it_came_and_not_when_a_late_reader_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent_ns: list[int] = []

    def answer(connection: socket.socket) -> None:
        time.sleep(0.1)  # the kernel begins to stamp a moment after it was asked to
        sent_ns.append(time.monotonic_ns())
        connection.sendall(b"early")

    read = wire._read

    def late(*arguments: object) -> bool:
        time.sleep(0.3)
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(wire, "_read", late)
    with server(answer) as address:
        _, (told,) = wire.exchange(address, [REQUEST], timeout_s=5)
    assert told.error is None and [piece for _, piece in told.pieces] == [b"early"]
    assert 0 <= told.pieces[0][0] - sent_ns[0] < 250e6


def test_a_stamp_that_contradicts_the_monotonic_clock_is_not_taken() -> None:
    told = wire.Exchange(REQUEST, sent_ns=1_000)
    stamps = {
        seconds: [(socket.SOL_SOCKET, wire.SO_TIMESTAMPNS, wire.TIMESPEC.pack(0, seconds))]
        for seconds in (500, 1_500, 9_000)
    }
    taken = [wire._stamped(stamps[at], 0, told, now_ns=2_000) for at in (500, 1_500, 9_000)]
    assert taken == [2_000, 1_500, 2_000]
    assert wire._stamped([], 0, told, now_ns=2_000) == 2_000


def test_what_came_before_a_server_died_is_kept() -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"5\r\nhel")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with server(answer) as address:
        _, (told,) = wire.exchange(address, [REQUEST], timeout_s=5)
    kept = wire.response(told.pieces)
    assert kept is None or b"".join(piece for _, piece in kept.body) == b"hel"
    assert "Reset" in (told.error or "")


def test_each_request_has_its_own_error() -> None:
    with server(lambda connection: None) as address:
        _, (first, second) = wire.exchange(address, [REQUEST, REQUEST], timeout_s=0.3)
    assert first.error is None and second.error


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_chunked_body_is_the_same_wherever_the_pieces_were_cut(size: int) -> None:
    whole = HEAD + b"5\r\nhello\r\n1;name=value\r\n\n\r\nA\r\n0123456789\r\n0\r\n\r\n"
    pieces = [(start, whole[start : start + size]) for start in range(0, len(whole), size)]
    found = wire.response(pieces)
    assert found and found.status == 200
    assert b"".join(piece for _, piece in found.body) == b"hello\n0123456789"
    ends = [whole.index(b"hello") + 4, whole.index(b"0123456789") + 9]
    came = {byte: moment for moment, piece in found.body for byte in piece}
    assert came[ord("o")] // size == ends[0] // size and came[ord("9")] // size == ends[1] // size


def test_a_body_without_chunks_is_all_that_follows_the_head() -> None:
    found = wire.response(
        [(1, b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r"), (2, b"\nno"), (3, b"pe")]
    )
    assert found == wire.Response(404, [(2, b"no"), (3, b"pe")])


def test_half_a_head_is_no_answer_and_another_protocol_is_refused() -> None:
    assert wire.response([(1, b"HTTP/1.1 200 OK\r\n")]) is None
    with pytest.raises(ValueError):
        wire.response([(1, b"SSH-2.0\r\n\r\n")])


def test_a_server_that_answers_nobody_is_given_up_once_and_not_once_for_each_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        begun = time.monotonic()
        _, told = wire.exchange(listener.getsockname()[:2], [REQUEST] * 4, timeout_s=0.5)
    assert time.monotonic() - begun < 1.4
    assert all(each.error for each in told)
