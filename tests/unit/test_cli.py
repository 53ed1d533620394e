"""The commands on what isn't there, isn't a study, or is published: three lines, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from finished_study import finish
from reproquant.cli import app
from reproquant.files import read_json, sha256_file
from reproquant.provenance.published import publish


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The made-up study as a run leaves it; nobody changes this one."""
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPROQUANT_STORE", str(root / "store"))
        yield finish(root)


@pytest.fixture
def published(finished: Path, tmp_path: Path) -> Path:
    publish(finished, tmp_path / "published")
    return tmp_path / "published"


def digests(folder: Path) -> dict[str, str]:
    """All that lies in a folder."""
    return {
        path.relative_to(folder).as_posix(): sha256_file(path) if path.is_file() else "a folder"
        for path in folder.rglob("*")
    }


def refused(*words: object) -> str:
    """What a command says that ends with three lines and code 2."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(done.exception, SystemExit) and done.exit_code == 2, done.exception
    assert done.stderr.startswith("error: ") and "\n  do:  " in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("times",), ("verify", "--rederive", "report"), ("publish", "new"), ("export-crate", "new"),
        ("remeasure", "llama-f16"), ("explain", "x"), ("sign", "key"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_results_directory_that_is_not_there_is_named(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "results/nothing" in refused(*words, "--results", "results/nothing")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", [b"", b"- a list\n", b"\xd0\x00", b"a: [unclosed"])
def test_a_study_file_that_is_none_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_bytes(content)
    assert "study.yaml" in refused("doctor", tmp_path / "study.yaml")


def test_no_measurement_is_forgotten_in_published_results(published: Path) -> None:
    before = digests(published)
    assert "published" in refused("remeasure", "llama-f16", "--results", published)
    assert digests(published) == before


def test_a_damaged_record_keeps_its_measurement_from_being_forgotten(finished: Path, tmp_path: Path) -> None:
    results = Path(shutil.copytree(finished, tmp_path / "results"))
    (results / "bench/llama-f16.json.prov.json").write_text("{")
    before = digests(results)
    assert "llama-f16.json.prov.json" in refused("remeasure", "llama-f16", "--results", results)
    assert digests(results) == before


def test_published_results_are_verified_as_far_as_their_inputs_are_there(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    before = digests(published)
    verify = ("verify", "--results", str(published), "--rederive")
    done = CliRunner().invoke(app, [*verify, "report"])
    assert done.exit_code == 0 and done.stdout.count("the same: report/") == 4
    for stage, needed in (
        ("quantize_gguf", "gguf/f16.gguf"),
        ("convert_gguf", "model/checkpoint/config.json"),
    ):
        said = refused(*verify, stage)
        assert needed in said.splitlines()[0] and "where the whole study lies" in said
    (published / ".scratch").rmdir()
    assert digests(published) == before


@pytest.mark.parametrize("damaged", ["bench/llama-f16.json", "llama_cpp/build.json"])
def test_a_number_whose_record_is_damaged_is_explained_by_naming_the_record(
    damaged: str, finished: Path, tmp_path: Path
) -> None:
    results = Path(shutil.copytree(finished, tmp_path / "results"))
    numbers = read_json(results / "report/report.json")["numbers"]
    id = next(one["id"] for one in numbers if one.get("source", {}).get("path") == "bench/llama-f16.json")
    (results / f"{damaged}.prov.json").write_text("{")
    assert f"{damaged}.prov.json" in refused("explain", id, "--results", results)
