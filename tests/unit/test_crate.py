"""The crate: whole, without a dead reference, weights by digest unless they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finished_study import finish
from reproquant.errors import FormatError
from reproquant.files import read_json, repository, sha256_file
from reproquant.provenance.crate import export
from reproquant.provenance.published import publish


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPROQUANT_STORE", str(root / "store"))
        yield finish(root)


def exported(results: Path, target: Path, with_weights: bool = False) -> dict[str, dict[str, Any]]:
    export(results, target, with_weights)
    graph = read_json(target / "ro-crate-metadata.json")["@graph"]
    assert len({entity["@id"] for entity in graph}) == len(graph)
    return {entity["@id"]: entity for entity in graph}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        if value.keys() == {"@id"}:
            yield value["@id"]
        for item in value.values():
            yield from references(item)


@pytest.fixture(params=["results", "published", "published/h200-2026-12-01"])
def exportable(request: pytest.FixtureRequest, results: Path, tmp_path: Path) -> Path:
    """Results of a run, the same published, and results that this repository keeps."""
    if request.param == "published":
        publish(results, tmp_path / "published")
        return tmp_path / "published"
    return results if request.param == "results" else repository() / request.param


def test_every_reference_inside_the_crate_leads_to_an_entity(exportable: Path, tmp_path: Path) -> None:
    entities = exported(exportable, tmp_path / "crate")
    for entity in entities.values():
        for id in references(entity):
            assert id in entities or id.startswith("https://"), f"{entity['@id']} names {id}"


def test_every_file_of_the_crate_is_there_with_its_digest_and_is_described(
    exportable: Path, tmp_path: Path
) -> None:
    target = tmp_path / "crate"
    entities = exported(exportable, target)
    for id, entity in entities.items():
        if "File" in entity["@type"] and "://" not in id:
            assert (target / id).is_file()
            assert entity.get("sha256") in (None, sha256_file(target / id))
    files = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert files - {"ro-crate-metadata.json"} <= entities.keys()


def test_weights_and_binaries_stay_out_and_are_named_by_digest(results: Path, tmp_path: Path) -> None:
    entities = exported(results, tmp_path / "crate")
    by_name = {entity.get("name"): entity for entity in entities.values()}
    for name in ("gguf/f16.gguf", "model/checkpoint/model.safetensors", "llama_cpp/bin/llama-server"):
        assert not (tmp_path / "crate" / name).exists()
        assert by_name[name]["@id"].startswith("ni:///sha-256;")
        assert by_name[name]["sha256"] == sha256_file(results / name)


def test_weights_come_along_when_they_are_asked_for(results: Path, tmp_path: Path) -> None:
    entities = exported(results, tmp_path / "crate", with_weights=True)
    assert (tmp_path / "crate/gguf/f16.gguf").read_bytes() == (results / "gguf/f16.gguf").read_bytes()
    assert not [id for id in entities if id.startswith("ni:")]


def test_published_results_give_the_crate_that_they_gave_before(results: Path, tmp_path: Path) -> None:
    publish(results, tmp_path / "published")
    before, after = (
        exported(results, tmp_path / "before"),
        exported(tmp_path / "published", tmp_path / "after"),
    )
    for whole in (before["./"], after["./"]):
        whole["hasPart"] = sorted(references(whole["hasPart"]))
    assert after == before
    with pytest.raises(FormatError, match="no weights"):
        export(tmp_path / "published", tmp_path / "crate", with_weights=True)


def test_the_crate_says_whether_its_workflow_made_the_results(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "the code that made" in exported(results, tmp_path / "then")["Snakefile"]["description"]
    monkeypatch.setattr("reproquant.provenance.crate.code", lambda stage: {f"{stage}.py": "0" * 64})
    words = exported(results, tmp_path / "now")["Snakefile"]["description"]
    assert "differ from those that made the results" in words and "quantize_gguf.py" in words


def test_a_file_that_is_gone_is_named_and_no_half_of_a_crate_is_left(results: Path, tmp_path: Path) -> None:
    gguf = results / "gguf/f16.gguf"
    gguf.rename(tmp_path / "away")
    try:
        with pytest.raises(FormatError, match=r"f16\.gguf"):
            export(results, tmp_path / "new/crate")
    finally:
        (tmp_path / "away").rename(gguf)
    assert list((tmp_path / "new").iterdir()) == []


def test_each_run_has_its_program_times_inputs_and_outputs(results: Path, tmp_path: Path) -> None:
    entities = exported(results, tmp_path / "crate")
    run = entities["#run-gguf/Q4_K_M.gguf"]
    assert run["instrument"] == {"@id": "scripts/quantize_gguf.py"}
    assert run["startTime"] < run["endTime"]
    assert [entities[one["@id"]]["name"] for one in run["object"]] == [
        "gguf/f16.gguf",
        "llama_cpp/build.json",
    ]
    assert entities[run["result"]["@id"]]["name"] == "gguf/Q4_K_M.gguf"


def test_what_is_not_sealed_or_would_overwrite_is_refused(results: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="already exists"):
        export(results, tmp_path)
    root = results / "root.json"
    content = root.read_bytes()
    root.unlink()
    try:
        with pytest.raises(FormatError, match="sealed"):
            export(results, tmp_path / "crate")
    finally:
        root.write_bytes(content)
