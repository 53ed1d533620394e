"""The faults of the suite: what goes wrong, and where a download must end then.

``arrange`` sets a fault up in a ``Scene``; what it returns, if anything, must hold after the download.
Every fault ends in the right files or in one error; ``says`` is part of what the user reads. The table of
``docs/hub.md`` is ``table()``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from fake_hub import (
    COMMIT,
    OTHER_COMMIT,
    REPOSITORY,
    Answer,
    FakeHub,
    around,
    chunked,
    cut_after,
    dribble,
    git_sha1,
    not_http,
    serve,
    silent_after,
    status,
    without_ranges,
    wrong_range,
)
from reproquant.files import repository
from reproquant.model import hub
from reproquant.model.hub.patience import Patience
from reproquant.study import HubModel

SPEC = HubModel(repository=REPOSITORY, revision=COMMIT, licence="MIT")
TOKEN = "hf_PlantedTokenOfTheSuite0123456789"
QUICK = Patience(
    silence=0.3,
    first_wait=0.01,
    longest_wait=0.05,
    waits=1.5,
    waits_unanswered=0.1,
    slow_after=0.2,
    step=1 << 16,
    between_lines=0,
)
"""The same bounds as in earnest, but for people who don't want to wait."""
HASTY = replace(QUICK, waits=0.3)
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass
class Scene:
    """A fake Hub, an empty cache, and a user with a token in the environment."""

    hub: FakeHub
    root: Path
    monkeypatch: pytest.MonkeyPatch
    patience: Patience = QUICK
    lines: list[str] = field(default_factory=list)

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def wanted(self) -> dict[str, bytes]:
        return {
            name: self.hub.files[name] for name in ("config.json", "tokenizer.json", INDEX, FIRST, SECOND)
        }

    def download(self, target: Path | None = None) -> dict[str, object]:
        return hub.download(SPEC, target or self.model, self.lines.append, self.patience)

    def cached(self, name: str, suffix: str = "") -> Path:
        """The file of the cache that holds ``name``, or its partial bytes."""
        folder = self.cache / "models--someone--tiny" / "blobs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self.hub.digest(name)}{suffix}"

    def partial(self, name: str) -> Path:
        return self.cached(name, ".reproquant.incomplete")

    def endpoint(self, address: str) -> None:
        self.monkeypatch.setattr(constants, "ENDPOINT", address)
        self.monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )

    def ranges(self, name: str) -> list[str]:
        return [request.range for request in self.hub.asked(f"bytes {name}")]


Check = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """``error`` is None when the download must end in the right files."""

    what: str
    arrange: Callable[[Scene], Check | None]
    says: str
    error: bool


FAULTS: list[Fault] = []
Arrange = Callable[[Scene], "Check | None"]


def overcome(what: str, says: str = "") -> Callable[[Arrange], Arrange]:
    """Register a fault that ends in the right files; ``says`` is in a line of progress."""

    def register(arrange: Arrange) -> Arrange:
        FAULTS.append(Fault(what, arrange, says, error=False))
        return arrange

    return register


def told(what: str, says: str) -> Callable[[Arrange], Arrange]:
    """Register a fault that ends in one error with ``says`` in it."""

    def register(arrange: Arrange) -> Arrange:
        FAULTS.append(Fault(what, arrange, says, error=True))
        return arrange

    return register


def table() -> str:
    """The faults as a table in Markdown."""
    rows = ["| fault | ends in | and says |", "|---|---|---|"]
    for fault in FAULTS:
        says = f"`{fault.says}`" if fault.says else ""
        rows.append(f"| {fault.what} | {'one error' if fault.error else 'the right files'} | {says} |")
    return "\n".join(rows) + "\n"


def swapped(data: bytes) -> bytes:
    """As many bytes, others."""
    return bytes(byte ^ 1 for byte in data)


# Busy


@overcome("503 twice when the list is asked for", "the Hub answered HTTP 503; trying again in")
def busy_list(scene: Scene) -> None:
    scene.hub.misbehave("list", status(503), status(503))


@overcome("500, 502 and 504 in a row for a file", "the Hub answered HTTP 502; trying again in")
def busy_file(scene: Scene) -> None:
    scene.hub.misbehave(f"resolve {FIRST}", status(500), status(502), status(504))


@overcome("429 with Retry-After in seconds", "limits the rate of requests (HTTP 429); trying again in 1 s")
def retry_after_seconds(scene: Scene) -> Check:
    scene.hub.misbehave("bytes config.json", status(429, Retry_After="1"))
    return lambda: waited(scene, "bytes config.json", 1.0)


@overcome("429 with Retry-After as a date", "limits the rate of requests (HTTP 429); trying again in")
def retry_after_date(scene: Scene) -> Check:
    def fault(answer: Answer) -> None:
        moment = datetime.now(UTC) + timedelta(seconds=1.4)  # the header cuts it to a whole second
        status(429, Retry_After=format_datetime(moment, usegmt=True))(answer)

    scene.hub.misbehave("list", fault)
    return lambda: waited(scene, "list", 0.3)


@overcome(
    "429 with the Hub's RateLimit header", "limits the rate of requests (HTTP 429); trying again in 1 s"
)
def rate_limit(scene: Scene) -> Check:
    scene.hub.misbehave("list", status(429, RateLimit='"api";r=0;t=1'))
    return lambda: waited(scene, "list", 1.0)


def waited(scene: Scene, step: str, seconds: float) -> None:
    first, second = (request.time for request in scene.hub.asked(step)[:2])
    assert second - first >= seconds


@told(
    "429 that asks to wait a day",
    "it asks to wait 24 h 0 min, and 1.5 s are waited at most",
)
def retry_after_a_day(scene: Scene) -> Check:
    scene.hub.misbehave("list", status(429, Retry_After="86400"), forever=True)

    def check() -> None:
        assert len(scene.hub.asked("list")) == 1

    return check


@told("503 without end", "the Hub answered HTTP 503; given up after waiting 0.")
def busy_for_ever(scene: Scene) -> Check:
    scene.patience = HASTY
    scene.hub.misbehave("list", status(503), forever=True)

    def check() -> None:
        assert 5 < len(scene.hub.asked("list")) < 50

    return check


# Broken connections and bodies


@overcome("connection cut in the middle of a file", "broke off (RemoteProtocolError: peer closed connection")
def cut(scene: Scene) -> Check:
    scene.hub.misbehave(f"bytes {FIRST}", cut_after(200_000))

    def check() -> None:
        first, second = scene.ranges(FIRST)
        assert first == ""
        assert 0 < int(second.removeprefix("bytes=").removesuffix("-")) <= 200_000

    return check


@overcome(
    "connection cut twelve times, each a little further",
    "broke off (RemoteProtocolError: peer closed connection",
)
def cut_often(scene: Scene) -> Check:
    scene.hub.misbehave(f"bytes {FIRST}", *[cut_after(20_000)] * 12)

    def check() -> None:
        ranges = [int(asked[6:-1] or 0) for asked in scene.ranges(FIRST)]
        assert len(ranges) == 13
        assert ranges == sorted(ranges)

    return check


@told(
    "connection cut each time before the first byte", "broke off (RemoteProtocolError: peer closed connection"
)
def cut_for_ever(scene: Scene) -> None:
    scene.patience = HASTY
    scene.hub.misbehave(f"bytes {FIRST}", cut_after(0), forever=True)


@overcome("server falls silent in the middle of a file", "fell silent (ReadTimeout")
def silent(scene: Scene) -> Check:
    scene.hub.misbehave(f"bytes {FIRST}", silent_after(150_000, seconds=1))

    def check() -> None:
        assert scene.ranges(FIRST)[1].startswith("bytes=")

    return check


@told("server accepts connections and never answers", "fell silent (ReadTimeout")
def never_answers(scene: Scene) -> None:
    scene.hub.misbehave("list", lambda answer: time.sleep(0.5), forever=True)


@overcome("server sends a byte now and then", "bytes came in 0.2 s; trying again")
def slow(scene: Scene) -> None:
    scene.hub.misbehave(f"bytes {FIRST}", dribble)


@overcome("body ends early, and its length was not announced", "the body ended after 1000 of")
def short_body(scene: Scene) -> None:
    scene.hub.misbehave(f"bytes {FIRST}", chunked(lambda data: data[:1000]))


@told("body goes on past the file's end", "more bytes came than the")
def long_body(scene: Scene) -> None:
    scene.hub.misbehave(f"bytes {FIRST}", chunked(lambda data: data + b"more"), forever=True)


@overcome("an answer that is no HTTP", "broke off (RemoteProtocolError: illegal status line")
def no_http(scene: Scene) -> None:
    scene.hub.misbehave(f"bytes {FIRST}", not_http)


@overcome("Content-Length of another file, once", "the server offers 5 bytes where")
def wrong_length(scene: Scene) -> None:
    scene.hub.misbehave(f"bytes {FIRST}", serve(lambda data: b"short"))


@told("body compressed though that was not asked for", "the body is compressed")
def compressed(scene: Scene) -> Check:
    fault = status(200, b"\x1f\x8b", Content_Encoding="gzip")
    scene.hub.misbehave("bytes config.json", fault, forever=True)

    def check() -> None:
        (first, second) = scene.hub.asked("bytes config.json")
        assert first.headers["accept-encoding"] == second.headers["accept-encoding"] == "identity"

    return check


# Ranges


@overcome(
    "server ignores Range after a cut connection", "broke off (RemoteProtocolError: peer closed connection"
)
def ignores_ranges(scene: Scene) -> None:
    scene.hub.misbehave(f"bytes {FIRST}", cut_after(200_000), without_ranges)


@overcome("server serves another range than asked for", "was not served")
def another_range(scene: Scene) -> None:
    scene.hub.misbehave(f"bytes {FIRST}", cut_after(200_000), wrong_range)


@overcome("server refuses the range (416)", "was not served")
def refused_range(scene: Scene) -> None:
    scene.hub.misbehave(f"bytes {FIRST}", cut_after(200_000), status(416))


# Wrong bytes


@overcome("weights corrupted on the way, once", "but the Hub says")
def corrupted_once(scene: Scene) -> None:
    scene.hub.misbehave(f"bytes {FIRST}", serve(swapped))


@told("weights corrupted each time", "but the Hub says")
def corrupted(scene: Scene) -> Check:
    scene.hub.misbehave(f"bytes {FIRST}", serve(swapped), forever=True)

    def check() -> None:
        assert scene.ranges(FIRST) == ["", ""]

    return check


@told("a small file corrupted each time", "but the Hub says")
def corrupted_small(scene: Scene) -> None:
    scene.hub.misbehave("bytes config.json", serve(swapped), forever=True)


@told("file changed: other size than the metadata's", "the server offers 9 bytes where")
def changed(scene: Scene) -> None:
    scene.hub.misbehave(f"bytes {FIRST}", serve(lambda data: b"a new one"), forever=True)


@overcome("ETag that isn't the file's digest")
def wrong_etag(scene: Scene) -> None:
    fault = lambda answer: answer.body(answer.fake.files[answer.name], ETag='"' + "0" * 64 + '"')  # noqa: E731
    scene.hub.misbehave(f"bytes {FIRST}", fault, forever=True)
    scene.hub.misbehave("bytes config.json", fault, forever=True)


@overcome("branch moved since the commit was pinned")
def moved_branch(scene: Scene) -> Check:
    def check() -> None:
        assert all(COMMIT in request.path for request in scene.hub.requests if request.host == "hub")

    return check


@told("mirror that answers for another commit", f"the endpoint answers for another one, {OTHER_COMMIT}")
def another_commit(scene: Scene) -> None:
    scene.hub.listed_commit = OTHER_COMMIT


# Refusals


@told("gated repository", "the repository is gated: only accounts that accepted its terms may download it")
def gated(scene: Scene) -> None:
    scene.hub.misbehave("list", status(403, X_Error_Code="GatedRepo"), forever=True)


@told("gated repository whose list is public", "accept the terms on https://huggingface.co/someone/tiny")
def gated_files(scene: Scene) -> None:
    scene.hub.misbehave(f"resolve {FIRST}", status(403, X_Error_Code="GatedRepo"), forever=True)


@told("no such repository, or a private one", "the Hub has no such repository, or it is private")
def no_repository(scene: Scene) -> None:
    scene.hub.misbehave("list", status(404, X_Error_Code="RepoNotFound"), forever=True)


@told("no such commit", "the repository has no such commit")
def no_revision(scene: Scene) -> None:
    scene.hub.misbehave("list", status(404, X_Error_Code="RevisionNotFound"), forever=True)


@told("repository disabled by the Hub", "the Hub has disabled the repository")
def disabled(scene: Scene) -> None:
    said = "Access to this resource is disabled."
    scene.hub.misbehave("list", status(403, X_Error_Message=said), forever=True)


@told(
    "token that the Hub doesn't know, echoed in its answer", "the Hub refuses the token in HF_TOKEN (HTTP 401"
)
def bad_token(scene: Scene) -> None:
    said = "Invalid credentials in Authorization header"
    fault = status(401, TOKEN.encode(), X_Error_Message=f"{said} {TOKEN}")
    scene.hub.misbehave("list", fault, forever=True)


@told("token without the right to read", "set HF_TOKEN to a valid token with read access")
def weak_token(scene: Scene) -> None:
    scene.hub.misbehave(f"resolve {FIRST}", status(403), forever=True)


@told("token with a line break in it", "it holds blanks or characters that no token has")
def token_no_header(scene: Scene) -> Check:
    scene.monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\n{TOKEN}")

    def check() -> None:
        assert not scene.hub.requests

    return check


@overcome("token in a file of 'hf auth login', none in the environment")
def token_file(scene: Scene) -> Check:
    scene.monkeypatch.delenv("HF_TOKEN")
    (scene.root / "token").write_text(TOKEN)
    scene.monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(scene.root / "token"))

    def check() -> None:
        assert not any("authorization" in request.headers for request in scene.hub.requests)
        (scene.root / "token").unlink()

    return check


@told("file that is listed but not there", "the Hub lists this file but doesn't have it")
def no_file(scene: Scene) -> None:
    scene.hub.misbehave(f"resolve {SECOND}", status(404, X_Error_Code="EntryNotFound"), forever=True)


# Redirects


@overcome("redirect to another host: the token stays behind")
def storage_host(scene: Scene) -> Check:
    def check() -> None:
        sent = {request.host: request.headers.get("authorization") for request in scene.hub.requests}
        assert sent == {"hub": f"Bearer {TOKEN}", "storage": None}

    return check


@overcome("repository that was renamed: the Hub redirects to its new name")
def renamed(scene: Scene) -> Check:
    scene.hub.misbehave("list", status(307, Location=f"/api/models/new/name/revision/{COMMIT}?blobs=True"))
    for name in (FIRST, SECOND):
        scene.hub.misbehave(f"resolve {name}", status(307, Location=f"/new/name/resolve/{COMMIT}/{name}"))

    def check() -> None:
        asked = [request for request in scene.hub.requests if request.path.count("new/name")]
        assert [request.headers["authorization"] for request in asked] == [f"Bearer {TOKEN}"] * 3

    return check


@told("repository that was renamed and is gated", "the repository is gated")
def renamed_and_gated(scene: Scene) -> None:
    away = status(307, Location=f"/new/name/resolve/{COMMIT}/{FIRST}")
    scene.hub.misbehave(f"resolve {FIRST}", away, status(403, X_Error_Code="GatedRepo"))


@overcome("signed link expired once (403 of the storage host)", "doesn't give the file out (HTTP 403)")
def expired_link(scene: Scene) -> Check:
    scene.hub.misbehave(f"bytes {FIRST}", status(403))

    def check() -> None:
        assert len(scene.hub.asked(f"resolve {FIRST}")) == 2

    return check


@told(
    "storage host that refuses each time", "the storage host 127.0.0.1 doesn't give the file out (HTTP 403)"
)
def refusing_storage(scene: Scene) -> None:
    scene.hub.misbehave(f"bytes {FIRST}", status(403), forever=True)


@told("redirects in a circle", "the Hub redirects without end")
def circle(scene: Scene) -> None:
    scene.hub.misbehave(f"resolve {FIRST}", around, forever=True)


# What the repository holds


@told("login page of a network in place of the list", "the answer is not the Hub's JSON")
def login_page(scene: Scene) -> None:
    scene.hub.misbehave("list", status(200, b"<html>Please log in</html>"), forever=True)


@overcome("garbage in place of the list, once", "the answer is not the Hub's JSON")
def garbage_once(scene: Scene) -> None:
    scene.hub.misbehave("list", status(200, b'{"id": '))


@told("JSON that is no list of files", "the answer is not the Hub's JSON")
def other_json(scene: Scene) -> None:
    scene.hub.misbehave("list", status(200, b'{"siblings": [{"name": 3}]}'), forever=True)


@told("metadata whose digest is a path", "the Hub's metadata gives no proper size and digest for it")
def digest_is_a_path(scene: Scene) -> None:
    scene.hub.says[FIRST] = "../../../evil"


@told("empty repository", "the repository is empty at this commit")
def empty(scene: Scene) -> None:
    scene.hub.files.clear()


@told("repository without safetensors", "it is no whole checkpoint in safetensors: it lacks *.safetensors")
def no_safetensors(scene: Scene) -> Check:
    del scene.hub.files[FIRST], scene.hub.files[SECOND]
    scene.hub.files["pytorch_model.bin"] = b"pickle"

    def check() -> None:
        assert {request.step for request in scene.hub.requests} == {"list"}

    return check


@told("index that lists a file which isn't there", f"it lacks {SECOND}")
def missing_shard(scene: Scene) -> None:
    del scene.hub.files[SECOND]


@told("index of weights that is no JSON", "it is no index of weights")
def garbage_index(scene: Scene) -> None:
    scene.hub.files[INDEX] = b"{"


# The network


@told("nothing listens at the endpoint", "can't be reached (ConnectError")
def nobody_there(scene: Scene) -> None:
    scene.endpoint(f"http://127.0.0.1:{free_port()}")


@told("endpoint that is no address", "correct HF_ENDPOINT, such as https://huggingface.co")
def no_address(scene: Scene) -> None:
    scene.endpoint("hub.example")


@told("endpoint with https that speaks no TLS", "can't be reached (ConnectError: [SSL")
def no_tls(scene: Scene) -> None:
    scene.endpoint(scene.hub.endpoint.replace("http:", "https:"))


@told("certificate that nobody vouches for", "is not trusted: [SSL: CERTIFICATE_VERIFY_FAILED]")
def self_signed(scene: Scene) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(scene.root / "tls"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    scene.endpoint(f"https://127.0.0.1:{server.server_port}")


def certificate(folder: Path) -> tuple[Path, Path]:
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    folder.mkdir()
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
    subprocess.run(
        [*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=20
    )
    return certificate, key


@told("proxy that isn't there", "can't be reached (ConnectError")
def no_proxy(scene: Scene) -> None:
    scene.monkeypatch.setenv("HTTP_PROXY", f"http://someone:{TOKEN}@127.0.0.1:{free_port()}")


@told("proxy that wants a login", "the proxy wants a login (HTTP 407)")
def proxy_login(scene: Scene) -> None:
    scene.hub.misbehave("list", status(407), forever=True)


@told("proxy that refuses a tunnel", "the proxy refuses: 403 Forbidden")
def proxy_tunnel(scene: Scene) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.send_response(403, "Forbidden")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    scene.monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.server_port}")
    scene.endpoint("https://hub.example")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


# The cache and the disk


@told("disk full while a file is written (ENOSPC of the kernel)", "the disk of the Hub cache is full")
def full_disk(scene: Scene) -> None:
    scene.partial(FIRST).symlink_to("/dev/full")


@told("disk without room for the model", "free, and 614 kB are to be fetched")
def no_room(scene: Scene) -> Check:
    usage = shutil.disk_usage(scene.root)._replace(free=1000)
    scene.monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    def check() -> None:
        assert {request.step for request in scene.hub.requests} == {"list"}

    return check


@told("cache folder that is a file", "the Hub cache can't be used")
def cache_is_a_file(scene: Scene) -> None:
    scene.cache.write_text("")


@overcome("cached file whose bytes have rotted", "in the cache: 1 files and 0 B of others; to fetch: 614 kB")
def rotten_cache(scene: Scene) -> Check:
    for name in ("config.json", FIRST):
        scene.cached(name).write_bytes(scene.hub.files[name])
    scene.cached(FIRST).write_bytes(swapped(scene.hub.files[FIRST]))

    def check() -> None:
        assert not scene.ranges("config.json")

    return check


@overcome("cached index of weights overwritten with garbage", "in the cache: 4 files and 0 B of others")
def rotten_index(scene: Scene) -> None:
    scene.download(scene.root / "earlier")
    scene.cached(INDEX).unlink()
    scene.cached(INDEX).write_bytes(b"{")


@overcome("killed after the last byte, before it was checked", "in the cache: 0 files and 400 kB of others")
def whole_partial(scene: Scene) -> Check:
    scene.partial(FIRST).write_bytes(scene.hub.files[FIRST])

    def check() -> None:
        assert not scene.ranges(FIRST)

    return check


@overcome("partial file with wrong bytes from an earlier run", "but the Hub says")
def rotten_partial(scene: Scene) -> Check:
    scene.partial(FIRST).write_bytes(swapped(scene.hub.files[FIRST])[:100_000])

    def check() -> None:
        assert scene.ranges(FIRST) == ["bytes=100000-", ""]

    return check


@overcome("partial file longer than the file", "but the Hub says")
def long_partial(scene: Scene) -> None:
    scene.partial(FIRST).write_bytes(b"x" * (len(scene.hub.files[FIRST]) + 1))


@overcome("killed in the middle of a file, then run again", "in the cache: 4 files and")
def killed(scene: Scene) -> Check:
    """kill -9 of a process that downloads; what it had is not fetched again."""
    scene.hub.misbehave(f"bytes {FIRST}", silent_after(1 << 17, seconds=5))
    program = (
        "from pathlib import Path; from reproquant.model import hub; from reproquant.study import HubModel; "
        f"hub.download({SPEC!r}, Path({str(scene.root / 'other')!r}))"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": scene.hub.endpoint,
        "HF_HUB_CACHE": str(scene.cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": str(repository() / "scripts"),
    }
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    others = [scene.cached(name) for name in scene.wanted if name != FIRST]
    while not all(path.exists() for path in others) or not size_of(scene.partial(FIRST)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = size_of(scene.partial(FIRST))
    assert 0 < kept <= 1 << 17
    assert not (scene.root / "other").exists()

    def check() -> None:
        assert scene.ranges(FIRST) == ["", f"bytes={kept}-"]

    return check


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@overcome("Hub away, whole model in the cache", "the whole model is in the cache")
def away(scene: Scene) -> Check:
    scene.download(scene.root / "earlier")
    scene.endpoint(f"http://127.0.0.1:{free_port()}")

    def check() -> None:
        assert not any("trying again" in line for line in scene.lines)

    return check


@overcome("HF_HUB_OFFLINE, whole model in the cache", "the whole model is in the cache")
def offline(scene: Scene) -> Check:
    scene.download(scene.root / "earlier")
    scene.hub.requests.clear()
    scene.monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def check() -> None:
        assert not scene.hub.requests

    return check


@told(
    "HF_HUB_OFFLINE, nothing in the cache", "HF_HUB_OFFLINE is set and the cache doesn't hold the whole model"
)
def offline_empty(scene: Scene) -> None:
    scene.monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@told("HF_HUB_OFFLINE, a rotten file in the cache", "its bytes in the cache have the digest")
def offline_rotten(scene: Scene) -> Check:
    scene.download(scene.root / "earlier")
    scene.monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    blob = scene.cached(FIRST)
    blob.unlink()
    blob.write_bytes(swapped(scene.hub.files[FIRST]))
    return blob.unlink


def rotten(cache: Path) -> list[str]:
    """Names of blobs whose bytes are not those that their name promises."""
    wrong = []
    for blob in cache.glob("models--*/blobs/*"):
        if not blob.name.endswith(".incomplete"):
            data = blob.read_bytes()
            if blob.name not in (hashlib.sha256(data).hexdigest(), git_sha1(data)):
                wrong.append(blob.name)
    return wrong
