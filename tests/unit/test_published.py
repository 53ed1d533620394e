"""Published results: what is copied, what is withheld, and what an audit makes of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from extract_plot import standalone
from finished_study import finish
from reproquant.cli import app
from reproquant.errors import FormatError
from reproquant.files import read_json, repository, write_json
from reproquant.provenance.audit import audit
from reproquant.provenance.digests import Digests
from reproquant.provenance.findings import Finding, Kind
from reproquant.provenance.published import publish


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    results = finish(tmp_path)
    (results / "benchmarks").mkdir()
    (results / "benchmarks/report.tsv").write_text("s\n1.0\n")
    return results


@pytest.fixture
def published(results: Path, tmp_path: Path) -> Path:
    publish(results, tmp_path / "published")
    shutil.rmtree(results)
    shutil.rmtree(tmp_path / "store")
    return tmp_path / "published"


def found(results: Path) -> list[Finding]:
    return audit(results, Digests())


def test_published_results_are_sound_without_weights_results_and_store(published: Path) -> None:
    assert found(published) == []
    names = [path.name for path in published.rglob("*") if path.is_file()]
    assert {"root.json", "study.json", "report.md", "report.tsv", "manifest.json"} <= {*names}
    assert "index.html" in names
    assert not [name for name in names if name.endswith((".gguf", ".safetensors")) or name == "llama-server"]


def test_published_results_are_sound_when_the_locks_have_moved_on(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reproquant.study.checks.lock_path", lambda name: tmp_path / f"{name}.lock")
    assert found(published) == []


def test_what_is_withheld_has_the_digest_that_its_record_promises(published: Path) -> None:
    withheld = {file["path"]: file["sha256"] for file in read_json(published / "published.json")["withheld"]}
    record = read_json(published / "gguf/f16.gguf.prov.json")
    assert withheld["gguf/f16.gguf"] == record["subject"][0]["digest"]["sha256"]
    listed = {file["path"]: file["sha256"] for file in read_json(published / "model/manifest.json")["files"]}
    assert listed == {
        path.removeprefix("model/checkpoint/"): sha256
        for path, sha256 in withheld.items()
        if path.startswith("model/")
    }


def test_another_digest_of_something_withheld_makes_it_missing(published: Path) -> None:
    data = read_json(published / "published.json")
    for file in data["withheld"]:
        if file["path"] == "gguf/f16.gguf":
            file["sha256"] = "0" * 64
    write_json(published / "published.json", data)
    assert [(one.kind, one.file) for one in found(published)] == [(Kind.MISSING, "gguf/f16.gguf")]


@pytest.mark.parametrize("name", ["report/report.md", "model/manifest.json"])
def test_only_what_is_large_can_be_withheld(published: Path, name: str) -> None:
    (published / name).unlink()
    data = read_json(published / "published.json")
    (record,) = [
        path
        for path in published.rglob("*.prov.json")
        if name in {s["name"] for s in read_json(path)["subject"]}
    ]
    sha256 = next(s["digest"]["sha256"] for s in read_json(record)["subject"] if s["name"] == name)
    data["withheld"].append({"path": name, "bytes": 1, "sha256": sha256})
    write_json(published / "published.json", data)
    assert (Kind.MISSING, name) in [(one.kind, one.file) for one in found(published)]


def test_a_page_of_more_than_a_mebibyte_is_withheld(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = results / "report/index.html"
    monkeypatch.setattr("reproquant.provenance.published.PAGE_BYTES", page.stat().st_size - 1)
    made = publish(results, tmp_path / "published")
    assert page.stat().st_size in [file.bytes for file in made.withheld if file.path == "report/index.html"]
    assert not (tmp_path / "published/report/index.html").exists()
    assert found(tmp_path / "published") == []


def test_a_changed_measurement_is_found_in_published_results_as_well(published: Path) -> None:
    path = published / "bench/llama-f16.json"
    path.write_text(path.read_text().replace('"concurrency": 1', '"concurrency": 2', 1))
    assert (Kind.TAMPERED, f"bench/{path.name}") in [(one.kind, one.file) for one in found(published)]


def test_a_remedy_for_published_results_is_no_run_of_the_workflow(published: Path) -> None:
    (published / "bench/llama-f16.json").unlink()
    (published / "model/manifest.json").write_text("{}")
    (published / "llama_cpp/bin").mkdir()
    (published / "llama_cpp/bin/planted").touch()
    remedies = {one.file: one.remedy for one in found(published)}
    assert "bench/llama-f16.json back from a copy" in remedies["bench/llama-f16.json"]
    assert remedies["llama_cpp/bin/planted"].startswith("delete it")
    assert not [remedy for remedy in remedies.values() if "snakemake" in remedy]
    (published / "study.json").unlink()
    assert [one.remedy.partition(" back")[0] for one in found(published)] == ["put study.json"]


def test_a_damaged_list_of_what_is_withheld_is_told_in_three_lines(published: Path) -> None:
    (published / "published.json").write_text("{")
    said = CliRunner().invoke(app, ["audit", str(published)])
    assert said.exit_code == 2 and len(said.stderr.splitlines()) == 3


def test_the_last_line_says_what_is_there_by_digest_only(published: Path) -> None:
    said = CliRunner().invoke(app, ["audit", str(published)])
    assert said.exit_code == 0 and "by digest only" in said.output
    told = json.loads(CliRunner().invoke(app, ["audit", "--json", str(published)]).output)
    assert told["files_withheld"] > 5 and told["compared_with_checkout"] is False


def test_an_unsealed_study_or_an_existing_folder_is_refused(results: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(FormatError, match="already exists"):
        publish(results, tmp_path / "there")
    publish(results, tmp_path / "published")
    with pytest.raises(FormatError, match="published already"):
        publish(tmp_path / "published", tmp_path / "new")
    (results / "root.json").unlink()
    with pytest.raises(FormatError, match="sealed"):
        publish(results, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", sorted(path.name for path in (repository() / "published").iterdir()))
def test_the_results_kept_in_this_repository_are_sound(name: str) -> None:
    assert found(repository() / "published" / name) == []


def test_a_plot_taken_out_of_the_page_brings_its_colours(results: Path) -> None:
    page = (results / "report/index.html").read_text(encoding="utf-8")
    alone = standalone(page, "decode")
    assert alone.startswith("<svg ") and "--series-0:" in alone and "prefers-color-scheme: dark" in alone
    assert ElementTree.fromstring(alone).tag.endswith("svg")
    with pytest.raises(FormatError, match="use one of: decode"):
        standalone(page, "nothing")
