from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from reproquant.errors import DownloadError
from reproquant.model import hub
from reproquant.study import HubModel

SPEC = HubModel(repository="someone/tiny", revision="0123456789abcdef" * 2 + "01234567", licence="MIT")


@dataclass
class FakeHub:
    """The part of the Hub's HTTP interface that a download of SPEC uses; weights are large files (LFS)."""

    files: dict[str, bytes]
    refusal: tuple[int, str] | None = None
    served: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def etag(self, name: str) -> str:
        data = self.files[name]
        if name.endswith(".safetensors"):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def tree(self) -> list[dict[str, object]]:
        entries = []
        for name, data in self.files.items():
            entry: dict[str, object] = {
                "type": "file",
                "path": name,
                "size": len(data),
                "oid": self.etag(name),
            }
            if name.endswith(".safetensors"):
                entry |= {
                    "oid": "0" * 40,
                    "lfs": {"oid": self.etag(name), "size": len(data), "pointerSize": 130},
                }
            entries.append(entry)
        return entries


class Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.hub.asked.append(self.path)
        if self.hub.refusal:
            status, code = self.hub.refusal
            self.answer(status, b"", {"X-Error-Code": code})
        elif self.path.startswith(f"/api/models/{SPEC.repository}/tree/{SPEC.revision}"):
            self.answer(200, json.dumps(self.hub.tree()).encode(), {"Content-Type": "application/json"})
        elif "/resolve/" in self.path:
            name = self.path.split(f"/resolve/{SPEC.revision}/")[1]
            data = self.hub.served.get(name, self.hub.files[name])
            self.answer(200, data, {"ETag": f'"{self.hub.etag(name)}"', "X-Repo-Commit": SPEC.revision})
        else:
            self.answer(404, b"", {})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    fake = FakeHub(
        {
            "config.json": b"{}",
            "tokenizer.json": b'{"model": 1}',
            "model.safetensors": b"weights",
            "README.md": b"a model",
            "pytorch_model.bin": b"the same in pickle",
            "onnx/config.json": b"{}",
        }
    )
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": fake}))
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    endpoint = f"http://127.0.0.1:{http.server_port}"
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)  # it keeps a file in the home folder
    yield fake
    http.shutdown()
    http.server_close()


def test_what_a_checkpoint_needs_is_fetched_and_nothing_else(server: FakeHub, tmp_path: Path) -> None:
    source = hub.download(SPEC, tmp_path / "model")
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == {
        name: server.files[name]
        for name in ("config.json", "tokenizer.json", "model.safetensors", "README.md")
    }
    assert (source["repository"], source["revision"]) == (SPEC.repository, SPEC.revision)
    assert not any("pytorch_model" in path or "onnx" in path for path in server.asked)


def test_a_cached_model_needs_no_second_download(server: FakeHub, tmp_path: Path) -> None:
    hub.download(SPEC, tmp_path / "first")
    server.asked.clear()
    hub.download(SPEC, tmp_path / "second")
    assert not any("/resolve/" in path for path in server.asked)
    assert (tmp_path / "second" / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_bytes_that_are_not_what_the_hub_says_are_refused(server: FakeHub, tmp_path: Path, name: str) -> None:
    server.served[name] = server.files[name].swapcase().replace(b"{}", b"[]")
    with pytest.raises(DownloadError, match="but the Hub says") as caught:
        hub.download(SPEC, tmp_path / "model")
    assert caught.value.where == name
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("status", "code", "reason", "remedy"),
    [
        (403, "GatedRepo", "gated", "accept the terms on https://huggingface.co/someone/tiny"),
        (404, "RepoNotFound", "no such repository", "correct model.hub.repository"),
        (404, "RevisionNotFound", "no such commit", "commits/main"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(
    server: FakeHub, tmp_path: Path, status: int, code: str, reason: str, remedy: str
) -> None:
    server.refusal = (status, code)
    with pytest.raises(DownloadError, match=reason) as caught:
        hub.download(SPEC, tmp_path / "model")
    assert remedy in caught.value.remedy


def test_a_repository_without_safetensors_is_refused(server: FakeHub, tmp_path: Path) -> None:
    del server.files["model.safetensors"]
    with pytest.raises(DownloadError, match=r"it lacks \*\.safetensors"):
        hub.download(SPEC, tmp_path / "model")


def test_offline_with_an_empty_cache_names_the_ways_out(
    server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="can't be reached") as caught:
        hub.download(SPEC, tmp_path / "model")
    assert "HF_HUB_OFFLINE" in caught.value.remedy
    assert not server.asked


def test_offline_with_the_whole_model_cached_works(
    server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.download(SPEC, tmp_path / "first")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.download(SPEC, tmp_path / "second")
    assert (tmp_path / "second" / "model.safetensors").read_bytes() == b"weights"
