"""Requests that are sent together, each on a connection of its own, and when every piece of the answers came.

While answers come in, one thread waits for all connections and only stores what
it reads. Where the kernel stamps what it receives (Linux's SO_TIMESTAMPNS), an
arrival is that stamp: neither a busy machine nor many streams at once make a
token look later than it was. Elsewhere it is the moment of reading.
"""

from __future__ import annotations

import gc
import http.client
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

SO_TIMESTAMPNS = 35  # Linux's asm-generic/socket.h; Python's socket module doesn't name it
TIMESPEC = struct.Struct("@ll")
READ_BYTES = 65536
SHORTEST_S = 0.001
END_OF_HEAD = b"\r\n\r\n"

Piece = tuple[int, bytes]


@dataclass
class Exchange:
    """A request and what came back, times in monotonic nanoseconds; ``error`` says what broke it off."""

    request: bytes
    sent_ns: int
    pieces: list[Piece] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True)
class Response:
    """An answer's status, and its body in pieces that came at once."""

    status: int
    body: list[Piece]


def exchange(
    address: tuple[str, int], requests: Sequence[bytes], timeout_s: float
) -> tuple[int, list[Exchange]]:
    """Connect for every request, send them all, and read until the server has closed each connection.

    Returns the moment of release (monotonic ns) and the exchanges in the order of
    the requests, which must ask for ``Connection: close``. What goes wrong with
    one stands in its ``error``. ``timeout_s`` counts from the release; before it, all
    connections together have as long. The garbage collector is off: it could stop
    the reading for milliseconds.
    """
    exchanges = [Exchange(request, 0) for request in requests]
    connections: dict[int, tuple[socket.socket, Exchange]] = {}
    gc.disable()
    connected_by_s = time.monotonic() + timeout_s
    try:
        for each in exchanges:
            with _kept(each):
                connection = _connect(address, max(SHORTEST_S, connected_by_s - time.monotonic()))
                connection.settimeout(timeout_s)
                connections[connection.fileno()] = connection, each
        released_ns = time.monotonic_ns()
        for each in exchanges:
            each.sent_ns = released_ns
        for connection, each in connections.values():
            with _kept(each):
                each.sent_ns = time.monotonic_ns()
                connection.sendall(each.request)
                connection.settimeout(None)
        _receive(connections, released_ns / 1e9 + timeout_s)
        for _, each in connections.values():
            each.error = each.error or f"no end within {timeout_s:g} s"
    finally:
        gc.enable()
        for connection, _ in connections.values():
            connection.close()
    return released_ns, exchanges


@contextmanager
def _kept(exchange: Exchange) -> Iterator[None]:
    """Keep a network's error in the exchange that it hit."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        exchange.error = exchange.error or f"{type(error).__name__}: {error}"


def _connect(address: tuple[str, int], timeout_s: float) -> socket.socket:
    """A connection that the server has taken already: it answered a question for its health on it."""
    client = http.client.HTTPConnection(*address, timeout=timeout_s)
    client.connect()
    with suppress(OSError):  # a kernel without stamps
        client.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    client.request("GET", "/health")
    client.getresponse().read()
    if client.sock is None:
        raise ConnectionError("the server keeps no connection open")
    connection: socket.socket = client.sock
    return connection


def _receive(connections: dict[int, tuple[socket.socket, Exchange]], deadline_s: float) -> None:
    """Read until each connection is at its end, or the deadline; those without an end stay in the dict."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    with select.epoll() as poll:
        for number in connections:
            poll.register(number, select.EPOLLIN)
        while connections and (left_s := deadline_s - time.monotonic()) > 0:
            for number, _ in poll.poll(left_s):
                connection, exchange = connections[number]
                if not _read(connection, exchange, offset_ns):
                    poll.unregister(number)
                    connection.close()
                    del connections[number]


def _read(connection: socket.socket, exchange: Exchange, offset_ns: int) -> bool:
    """Keep what came and when; false at the end. ``offset_ns`` is wall clock less monotonic clock."""
    with _kept(exchange):
        data, ancillary, _, _ = connection.recvmsg(READ_BYTES, 64)
        now_ns = time.monotonic_ns()
        if data:
            exchange.pieces.append((_stamped(ancillary, offset_ns, exchange, now_ns), data))
            return True
    return False


def _stamped(ancillary: list[tuple[int, int, bytes]], offset_ns: int, exchange: Exchange, now_ns: int) -> int:
    """The kernel's stamp of what was just read; now if there is none or the wall clock was set meanwhile."""
    for level, kind, stamp in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = TIMESPEC.unpack(stamp)
            came_ns = int(seconds * 1_000_000_000 + nanoseconds - offset_ns)
            earliest_ns = exchange.pieces[-1][0] if exchange.pieces else exchange.sent_ns
            if earliest_ns <= came_ns <= now_ns:
                return came_ns
    return now_ns


def response(pieces: Sequence[Piece]) -> Response | None:
    """Take an HTTP/1.1 answer apart; None if its head isn't whole. Raises ValueError for what is no HTTP."""
    head, rest = b"", list(pieces)
    while END_OF_HEAD not in head:
        if not rest:
            return None
        now_ns, piece = rest.pop(0)
        head += piece
    head, _, first = head.partition(END_OF_HEAD)
    status, *fields = head.decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip().lower()
        for name, _, value in (each.partition(":") for each in fields)
    }
    body = [(now_ns, first), *rest] if first else rest
    chunked = headers.get("transfer-encoding") == "chunked"
    return Response(int(status.partition(" ")[2][:3]), list(_unchunked(body)) if chunked else body)


def _unchunked(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The data of a chunked body, RFC 9112 section 7.1; ends early where the body does."""
    rest, left = b"", 0  # bytes of the chunk that are still to come, with the line's end behind it
    for now_ns, piece in pieces:
        rest += piece
        while rest:
            if left > 2:
                data, rest = rest[: left - 2], rest[left - 2 :]
                left -= len(data)
                yield now_ns, data
            elif left:
                left, rest = max(0, left - len(rest)), rest[left:]
            else:
                size, end, after = rest.partition(b"\r\n")
                if not end:
                    break
                if not (length := int(size.partition(b";")[0], 16)):
                    return
                left, rest = length + 2, after
