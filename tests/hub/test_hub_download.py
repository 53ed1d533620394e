"""A download without faults: what is fetched, how, what is told, and who else can use the cache."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import yaml
from huggingface_hub import constants, snapshot_download

from fake_hub import COMMIT, REPOSITORY, SIGNATURE, Answer
from hub_faults import FIRST, SECOND, SPEC, TOKEN, Scene, size_of
from reproquant.errors import DownloadError
from reproquant.files import read_json, repository, write_json
from reproquant.model.hub.patience import Backoff, Patience
from reproquant.model.hub.progress import Progress, amount, duration
from reproquant.model.hub.refusals import asked_wait
from reproquant.model.hub.trouble import Trouble
from reproquant.model.hub.words import Account
from reproquant.model.manifest import Manifest
from reproquant.recipe import recipe_digest
from reproquant.study import Study


def test_what_a_checkpoint_needs_is_fetched_and_nothing_else(scene: Scene) -> None:
    source = scene.download()
    assert {path.name: path.read_bytes() for path in scene.model.iterdir()} == scene.wanted
    assert source["kind"] == "hub"
    assert (source["repository"], source["revision"]) == (SPEC.repository, SPEC.revision)
    assert not any(
        "pytorch_model" in request.path or "onnx" in request.path for request in scene.hub.requests
    )


def test_a_cached_model_costs_one_request_for_the_list(scene: Scene) -> None:
    scene.download(scene.root / "first")
    scene.hub.requests.clear()
    scene.download(scene.root / "second")
    assert [request.step for request in scene.hub.requests] == ["list"]
    assert (scene.root / "second" / FIRST).read_bytes() == scene.hub.files[FIRST]


def test_files_are_fetched_at_the_same_time(scene: Scene) -> None:
    both_are_asked_for = threading.Barrier(2, timeout=10)

    def together(answer: Answer) -> None:
        both_are_asked_for.wait()
        answer.honest()

    scene.hub.misbehave(f"resolve {FIRST}", together)
    scene.hub.misbehave(f"resolve {SECOND}", together)
    scene.download()
    assert not both_are_asked_for.broken


def test_two_downloads_of_one_model_fetch_each_byte_once(scene: Scene) -> None:
    threads = [
        threading.Thread(target=scene.download, args=(scene.root / name,)) for name in ("first", "second")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, data in scene.wanted.items():
        assert len(scene.hub.asked(f"bytes {name}")) == 1
        assert (scene.root / "first" / name).read_bytes() == data
        assert (scene.root / "second" / name).read_bytes() == data


def test_a_failure_stops_the_other_files_and_keeps_their_bytes(scene: Scene) -> None:
    def refuse(answer: Answer) -> None:
        while not size_of(scene.partial(FIRST)):
            time.sleep(0.01)
        answer.send(404, b"", {"X-Error-Code": "EntryNotFound"})

    def slowly(answer: Answer) -> None:
        data = answer.fake.files[FIRST]
        answer.head(200, {"Content-Length": str(len(data))})
        for start in range(0, len(data), 10_000):
            answer.wfile.write(data[start : start + 10_000])
            answer.wfile.flush()
            time.sleep(0.1)

    scene.patience = replace(scene.patience, slow_after=10)
    scene.hub.misbehave(f"resolve {SECOND}", refuse)
    scene.hub.misbehave(f"bytes {FIRST}", slowly)
    with pytest.raises(DownloadError, match="doesn't have it"):
        scene.download()
    kept = size_of(scene.partial(FIRST))
    assert 0 < kept < len(scene.hub.files[FIRST])
    scene.download()
    assert scene.ranges(FIRST) == ["", f"bytes={kept}-"]
    assert (scene.model / FIRST).read_bytes() == scene.hub.files[FIRST]


def test_a_cache_that_huggingface_hub_filled_is_used(scene: Scene) -> None:
    snapshot_download(REPOSITORY, revision=COMMIT, token=False)
    scene.hub.requests.clear()
    scene.download()
    assert [request.step for request in scene.hub.requests] == ["list"]
    assert {path.name for path in scene.model.iterdir()} == set(scene.wanted)


def test_a_cache_that_huggingface_hub_left_half_full_is_not_taken_for_whole_offline(scene: Scene) -> None:
    snapshot_download(REPOSITORY, revision=COMMIT, token=False)
    (listing,) = scene.cache.glob("models--*/trees/*.json")
    tree = read_json(listing)
    tree["files"]["generation_config.json"] = {"size": 2, "blob_id": "1" * 40}
    write_json(listing, tree)
    program = f"""
from pathlib import Path
from reproquant.model.hub.cache import RepositoryCache
from reproquant.study import HubModel
print(RepositoryCache({SPEC!r}).is_whole())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(scene), capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr


def test_huggingface_hub_uses_the_cache_that_a_download_filled(scene: Scene) -> None:
    scene.download()
    found = Path(snapshot_download(REPOSITORY, revision=COMMIT, local_files_only=True))
    assert {path.name: path.read_bytes() for path in found.iterdir()} == scene.wanted


def test_a_blob_that_lies_in_the_store_shared_by_repositories_is_checked_by_its_own_name(
    scene: Scene,
) -> None:
    scene.download(scene.root / "earlier")
    shared = scene.cache / "blobs" / "ab" / ("ab" * 32)
    shared.parent.mkdir(parents=True)
    scene.cached(FIRST).replace(shared)
    scene.cached(FIRST).symlink_to(shared)
    scene.monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    scene.download()
    assert (scene.model / FIRST).read_bytes() == scene.hub.files[FIRST]


def test_the_stage_tells_its_progress_in_the_log_and_on_the_terminal_and_no_secret(scene: Scene) -> None:
    results = scene.root / "results"
    study = yaml.safe_load((repository() / "config.yaml").read_text())
    study["model"] = {"name": "tiny", "source": "hub", "hub": SPEC.model_dump()}
    resolved = Study.resolve(study)
    write_json(results / "study.json", resolved.dump())
    command = {
        "study": results / "study.json",
        "recipe": recipe_digest("fetch_model", resolved),
        "log": results / "logs/fetch_model.log",
        "output": results / "model/manifest.json",
    }
    options = [word for name, value in command.items() for word in (f"--{name}", str(value))]
    program = repository() / "scripts/fetch_model.py"
    done = subprocess.run(
        [sys.executable, program, *options], env=environment(scene), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    line = rf"\[\d\d:\d\d:\d\d\] {REPOSITORY} at {COMMIT[:12]} from {scene.hub.endpoint}: 5 files, 614 kB;"
    for text in (done.stderr, (results / "logs/fetch_model.log").read_text()):
        assert re.search(line, text)
        assert re.search(r"\] 614 kB in .* s, .*B/s; all digests are the Hub's\n", text)
    manifest = Manifest.load(results / "model/manifest.json")
    assert {file.path for file in manifest.files} == set(scene.wanted)
    written = [path.read_bytes() for path in scene.root.rglob("*") if path.is_file()]
    assert not any(
        secret.encode() in text for text in [*written, done.stderr.encode()] for secret in (TOKEN, SIGNATURE)
    )


def environment(scene: Scene) -> dict[str, str]:
    """Of a process that asks the fake by HF_ENDPOINT, as one would ask a mirror."""
    return {
        **os.environ,
        "HF_ENDPOINT": scene.hub.endpoint,
        "HF_HUB_CACHE": str(scene.cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "REPROQUANT_STORE": str(scene.root / "store"),
        "PYTHONPATH": str(repository() / "scripts"),
    }


def test_a_line_of_progress_says_how_much_how_fast_and_how_long_still() -> None:
    lines: list[str] = []
    progress = Progress(total=4_000_000, tell=lines.append, between_lines=0)
    progress.received(1_000_000)
    assert re.fullmatch(r"1 MB of 4 MB \(25 %\), .+B/s, .+ s left", lines[0])


def test_waits_double_and_begin_anew_when_bytes_have_come() -> None:
    lines: list[str] = []
    backoff = Backoff(Patience(first_wait=0.001, longest_wait=0.004), lines.append, answered=True)
    trouble = Trouble("it broke off", "run again", passing=True)
    for _ in range(4):
        backoff.wait(trouble, "x")
    backoff.got_through()
    backoff.wait(trouble, "x")
    assert [line.rsplit(" ", 2)[1] for line in lines] == ["0.001", "0.002", "0.004", "0.004", "0.001"]


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("120", 120.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("²", None),
        ("9" * 400, None),
        ("Fri, 31 Dec 9999 23:59:59 -2300", None),
    ],
)
def test_a_wait_that_makes_no_sense_is_none_that_was_asked_for(asked: str, seconds: float | None) -> None:
    assert asked_wait(httpx2.Headers({"Retry-After": asked.encode("latin-1")})) == seconds


def test_amounts_and_times_are_for_people() -> None:
    assert [amount(size) for size in (0, 999, 1000, 15_231_000_000, 152e9)] == [
        "0 B",
        "999 B",
        "1 kB",
        "15.2 GB",
        "152 GB",
    ]
    assert [duration(seconds) for seconds in (0.53, 12, 61, 86400)] == [
        "0.53 s",
        "12 s",
        "1 min 1 s",
        "24 h 0 min",
    ]


def test_signatures_and_logins_are_taken_out_of_addresses() -> None:
    text = "of 'https://someone:word@mirror.example/x?Signature=abc' and hf_secret"
    assert Account("hf_secret").without_secrets(text) == "of 'https://mirror.example/x' and <HF_TOKEN>"
    assert "hf_secret" not in repr(Account("hf_secret"))
