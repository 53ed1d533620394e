"""A made-up finished study with records, root and store: SYNTHETIC bytes in the shape of real ones."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import report_fixture
from reproquant import report
from reproquant.files import read_json, sha256_file, store, write_json
from reproquant.model import manifest
from reproquant.provenance import installed
from reproquant.provenance.artifacts import Artifact, artifacts
from reproquant.provenance.record import compose
from reproquant.provenance.root import seal
from reproquant.recipe import recipe
from reproquant.study import External, Study, lock_path
from reproquant.toolchain.environments import ExternalEnv

PYTHON = "3.11.7"


def finish(root: Path) -> Path:
    """``root/results/NAME`` as a run would leave it; ``REPROQUANT_STORE`` is filled too."""
    results = report_fixture.make_results(root)
    study = Study.load(results / "study.json")
    write_json(results / "study.json", study.dump())
    _bytes(results, study)
    for artifact in artifacts(study):
        if artifact.stage == "report":
            report.build(results, results / "report")
        record(results, study, artifact)
    write_json(results / "root.json", seal(results))
    return results


def with_requests(results: Path, bench: str) -> None:
    """Put requests into a measurement of a finished study; round 2 at concurrency 4 has one that failed."""
    data = read_json(results / bench)
    data["requests"] = [
        _request(round, concurrency, index)
        for round in range(6)
        for concurrency in (4, 1)
        for index in range(concurrency)
        if not (round == 5 and concurrency == 1)
    ]
    write_json(results / bench, data)


def _request(round: int, concurrency: int, index: int) -> dict[str, object]:
    broken = (round, concurrency, index) == (2, 4, 3)
    times = {"prefill_ms": 40.0 + index, "decode_ms": 8.5e-05, "output_tokens": None, "queue_ms": None}
    return {
        "launch": 0, "round": round, "concurrency": concurrency, "index": index, "nonce_id": 1000 + round,
        "sent_ms": 0.1, "first_token_ms": None if broken else 50.0,
        "last_token_ms": None if broken else 900.0 + 100 * round + 10 * concurrency + index,
        "prompt_tokens": 512, "completion_tokens": 128, "cached_tokens": 0, "error": "reset" if broken else None,
        "server": None if index == 2 else {**times, "mean_of": 1},
    }  # fmt: skip


def record(
    results: Path, study: Study, artifact: Artifact, started: str = "2026-01-01T00:00:00.000+00:00"
) -> None:
    """Write an artifact's record as ``stage`` does."""
    made = recipe(artifact.stage, study, **artifact.wildcards)
    inputs = [results / name for name in artifact.needs]
    outputs = {results / name: sha256_file(results / name) for name in artifact.outputs.values()}
    write_json(
        results / artifact.record,
        compose(results, made, inputs, outputs, started, "2026-01-01T00:05:00.000+00:00"),
    )


def _bytes(results: Path, study: Study) -> None:
    """The files of every artifact but the report, small and made up."""
    for role in study.roles:
        name, chosen = study.environments.name(role), study.environments.of(role)
        facts = ExternalEnv(role, chosen).describe() if isinstance(chosen, External) else _environment(name)
        write_json(results / "environments" / f"{name}.json", facts)
    write_json(results / "llama_cpp/source.json", {"kind": "git", **study.llama_cpp.spec.model_dump()})
    _build(results)
    for folder in ("model", "fp8"):
        checkpoint = results / folder / "checkpoint"
        for name, size in (("config.json", 50), ("model.safetensors", 5000)):
            _write(checkpoint / name, f"{folder}/{name} ".encode() * size)
        source = {"kind": "local", "licence": "none", "note": "Made up for a test."}
        manifest.write(checkpoint, results / folder / "manifest.json", study.model.name, source)
    for type in ("f16", *study.gguf.quantizations):
        _write(results / f"gguf/{type}.gguf", f"GGUF {type} ".encode() * 1000)


def _build(results: Path) -> None:
    tools = {name: f"ELF {name} ".encode() * 100 for name in ("llama-server", "llama-quantize")}
    for name, content in tools.items():
        _write(results / "llama_cpp/bin" / name, content)
    build = read_json(results / "llama_cpp/build.json")
    build["binaries"] = {
        name: {"sha256": sha256_file(results / "llama_cpp/bin" / name), "bytes": len(content)}
        for name, content in tools.items()
    }
    write_json(results / "llama_cpp/build.json", build)


def _environment(name: str) -> dict[str, object]:
    """Fill the store's folder of an environment and describe it."""
    facts = {"name": name, "python": PYTHON, "lock_sha256": sha256_file(lock_path(name)), "packages": {}}
    root = installed.folder(facts)
    packages = root / "lib/python3.11/site-packages"
    lines = []
    for file in (f"{name}/__init__.py", f"{name}/core.py"):
        content = f"# {file}\n".encode() * 20
        _write(packages / file, content)
        hash = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        lines.append(f"{file},sha256={hash},{len(content)}")
    info = f"{name}-1.0.dist-info"
    _write(packages / info / "METADATA", b"Name: x\n")
    lines += [f"{info}/METADATA,,", f"{info}/RECORD,,"]
    _write(packages / info / "RECORD", ("\n".join(lines) + "\n").encode())
    write_json(root / "complete.json", {})
    found = installed.read(root)
    assert found is not None and store() in root.parents
    return {**facts, "installed_sha256": found.installed_sha256}


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
