"""A fake of the Hugging Face Hub on this machine: the part of its HTTP interface that a download uses.

It is two servers, as the real one is: the Hub itself, which lists a repository, gives out small files and
sends a client that wants a large one (LFS) on with a signed link, and the storage host that the link leads to.
A test says by ``misbehave`` how it fails; every request is kept for the test to look at.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

REPOSITORY = "someone/tiny"
COMMIT = "0123456789abcdef" * 2 + "01234567"
OTHER_COMMIT = "f" * 40
SIGNATURE = "SignatureOfTheStorageLink"


@dataclass(frozen=True)
class Request:
    """What a client asked: ``step`` is ``list``, ``resolve NAME`` or ``bytes NAME``."""

    step: str
    host: str
    path: str
    headers: dict[str, str]
    time: float

    @property
    def range(self) -> str:
        return self.headers.get("range", "")


@dataclass
class FakeHub:
    """One repository and its files at ``COMMIT``; ``*.safetensors`` are large files.

    ``says`` overrides the digest that the metadata gives for a file, ``sizes`` its size.
    """

    files: dict[str, bytes]
    says: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    listed_commit: str = COMMIT
    requests: list[Request] = field(default_factory=list)
    _faults: dict[str, list[Callable[[Answer], None]]] = field(default_factory=dict)
    _forever: dict[str, Callable[[Answer], None]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.hub, self.storage = _Server(self, "hub"), _Server(self, "storage")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.hub.server_port}"

    def close(self) -> None:
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()

    def misbehave(self, step: str, *faults: Callable[[Answer], None], forever: bool = False) -> None:
        """Answer the next requests of ``step`` with ``faults``, one after the other; the last one for ever."""
        with self._lock:
            self._faults.setdefault(step, []).extend(faults[:-1] if forever else faults)
            if forever:
                self._forever[step] = faults[-1]

    def asked(self, step: str) -> list[Request]:
        return [request for request in self.requests if request.step == step]

    def digest(self, name: str) -> str:
        if name in self.says:
            return self.says[name]
        data = self.files[name]
        if is_large(name):
            return hashlib.sha256(data).hexdigest()
        return git_sha1(data)

    def listing(self) -> dict[str, object]:
        return {
            "id": REPOSITORY,
            "sha": self.listed_commit,
            "private": False,
            "tags": [],
            "downloads": 0,
            "siblings": [self._sibling(name) for name in self.files],
        }

    def tree(self) -> list[dict[str, object]]:
        """The same as ``listing``, as huggingface_hub's own downloads ask for it."""
        entries = []
        for name in self.files:
            sibling = self._sibling(name)
            entry = {"type": "file", "path": name, "size": sibling["size"], "oid": sibling["blobId"]}
            if "lfs" in sibling:
                entry["lfs"] = {"oid": self.digest(name), "size": sibling["size"], "pointerSize": 130}
            entries.append(entry)
        return entries

    def _sibling(self, name: str) -> dict[str, object]:
        size = self.sizes.get(name, len(self.files[name]))
        if is_large(name):
            lfs = {"sha256": self.digest(name), "size": size, "pointerSize": 130}
            return {"rfilename": name, "size": size, "blobId": "0" * 40, "lfs": lfs}
        return {"rfilename": name, "size": size, "blobId": self.digest(name)}

    def answer(self, answer: Answer) -> None:
        with self._lock:
            self.requests.append(answer.asked)
            step = answer.asked.step
            queue = self._faults.get(step)
            fault = queue.pop(0) if queue else self._forever.get(step)
        (fault or Answer.honest)(answer)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, fake: FakeHub, host: str) -> None:
        super().__init__(("127.0.0.1", 0), type("Bound", (Answer,), {"fake": fake, "host": host}))
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that are killed or give up break connections; that is what the tests are for."""


class Answer(BaseHTTPRequestHandler):
    """One request and the ways to answer it."""

    fake: FakeHub
    host: str
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.asked = Request(self._step(), self.host, self.path, headers, time.monotonic())
        self.fake.answer(self)

    def _step(self) -> str:
        path = unquote(self.path.split("?")[0])
        if api := re.match("/api/models/[^/]+/[^/]+/(revision|tree)/", path):
            return "list" if api[1] == "revision" else "tree"
        if self.host == "storage":
            return f"bytes {path[1:]}"
        name = path.split("/resolve/")[1].split("/", 1)[1]
        return f"resolve {name}" if is_large(name) else f"bytes {name}"

    @property
    def name(self) -> str:
        return self.asked.step.split(" ", 1)[1]

    def honest(self) -> None:
        """What the real Hub does."""
        if self.asked.step == "list":
            self.send(200, json.dumps(self.fake.listing()).encode(), {"Content-Type": "application/json"})
        elif self.asked.step == "tree":
            self.send(200, json.dumps(self.fake.tree()).encode(), {"Content-Type": "application/json"})
        elif self.asked.step.startswith("resolve"):
            link = f"http://127.0.0.1:{self.fake.storage.server_port}/{self.name}?X-Amz-Signature={SIGNATURE}"
            headers = {"X-Linked-Etag": f'"{self.fake.digest(self.name)}"', "X-Repo-Commit": COMMIT}
            headers["X-Linked-Size"] = str(len(self.fake.files[self.name]))
            self.send(302, b"", {**headers, "Location": link})
        else:
            self.body(self.fake.files[self.name])

    def body(self, data: bytes, **headers: str) -> None:
        """A file, or the range of it that was asked for."""
        headers = {"ETag": f'"{self.fake.digest(self.name)}"', "X-Repo-Commit": COMMIT, **headers}
        start = self.start
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.send(206 if start else 200, data[start:], headers)

    @property
    def start(self) -> int:
        return int(self.asked.range.removeprefix("bytes=").removesuffix("-") or 0)

    def send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.head(status, {"Content-Length": str(len(body)), **(headers or {})})
        if self.command == "GET":
            self.wfile.write(body)

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def cut(self) -> None:
        """Close the connection at once."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def is_large(name: str) -> bool:
    return name.endswith(".safetensors")


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


# Ways to fail. Each is given to ``misbehave``.


def status(code: int, body: bytes = b"", **headers: str) -> Callable[[Answer], None]:
    """Refuse with an HTTP status; ``X_Error_Code="GatedRepo"`` is the header X-Error-Code."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda answer: answer.send(code, body, named)


def serve(change: Callable[[bytes], bytes]) -> Callable[[Answer], None]:
    """Serve other bytes than the file's, as if all were well."""
    return lambda answer: answer.body(change(answer.fake.files[answer.name]))


def cut_after(count: int) -> Callable[[Answer], None]:
    """Break the connection off after ``count`` bytes of what was asked for."""

    def fault(answer: Answer) -> None:
        data = answer.fake.files[answer.name][answer.start :]
        total = len(answer.fake.files[answer.name])
        span = {"Content-Range": f"bytes {answer.start}-{total - 1}/{total}"} if answer.start else {}
        answer.head(206 if answer.start else 200, {"Content-Length": str(len(data)), **span})
        answer.wfile.write(data[:count])
        answer.wfile.flush()
        answer.cut()

    return fault


def silent_after(count: int, seconds: float) -> Callable[[Answer], None]:
    """Send ``count`` bytes and then nothing for a time."""

    def fault(answer: Answer) -> None:
        data = answer.fake.files[answer.name]
        answer.head(200, {"Content-Length": str(len(data))})
        answer.wfile.write(data[:count])
        answer.wfile.flush()
        time.sleep(seconds)
        answer.cut()

    return fault


def dribble(answer: Answer) -> None:
    """A byte now and then."""
    data = answer.fake.files[answer.name][answer.start :]
    answer.head(200, {"Content-Length": str(len(data))})
    for place in range(len(data)):
        answer.wfile.write(data[place : place + 1])
        answer.wfile.flush()
        time.sleep(0.02)


def without_ranges(answer: Answer) -> None:
    """Ignore the Range header and send everything."""
    answer.send(200, answer.fake.files[answer.name])


def wrong_range(answer: Answer) -> None:
    """Send the file's beginning as if it were the range that was asked for."""
    data = answer.fake.files[answer.name]
    answer.send(206, data, {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"})


def chunked(change: Callable[[bytes], bytes]) -> Callable[[Answer], None]:
    """Send a body of no announced length."""

    def fault(answer: Answer) -> None:
        answer.head(200, {"Transfer-Encoding": "chunked"})
        body = change(answer.fake.files[answer.name])
        answer.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))

    return fault


def not_http(answer: Answer) -> None:
    """Bytes that are no HTTP at all."""
    answer.wfile.write(b"\x15\x03\x01\x00\x02\x02\x16 hello\r\n\r\n")
    answer.cut()


def around(answer: Answer) -> None:
    """Redirect to the same place."""
    answer.send(302, b"", {"Location": answer.path})
