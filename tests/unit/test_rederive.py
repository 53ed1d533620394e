"""Which stages give the same bytes again, and how one is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from finished_study import finish
from reproquant.errors import ReproquantError
from reproquant.files import read_json, sha256_file
from reproquant.provenance.rederive import chosen, rederive, rules
from reproquant.stages import STAGES
from reproquant.study import Study


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPROQUANT_STORE", str(root / "store"))
        yield finish(root)


@pytest.fixture
def study(results: Path) -> Study:
    return Study.load(results / "study.json")


def test_the_table_has_every_stage_and_a_reason_for_each() -> None:
    assert rules().keys() == STAGES.keys()
    assert all(rule.reason for rule in rules().values())


def test_a_stage_that_makes_several_artifacts_needs_to_be_told_which(study: Study) -> None:
    assert chosen(study, "convert_gguf", None).main == "gguf/f16.gguf"
    assert chosen(study, "quantize_gguf", None).main == "gguf/Q4_K_M.gguf"
    assert chosen(study, "inspect_gguf", "Q4_K_M").main == "gguf/Q4_K_M.inspect.json"
    with pytest.raises(ReproquantError, match="several") as refusal:
        chosen(study, "inspect_gguf", None)
    assert "f16, Q4_K_M" in refusal.value.remedy
    with pytest.raises(ReproquantError, match="none for 'Q2_K'"):
        chosen(study, "inspect_gguf", "Q2_K")
    with pytest.raises(ReproquantError, match="makes one artifact"):
        chosen(study, "convert_gguf", "f16")
    with pytest.raises(ReproquantError, match="no such stage") as refusal:
        chosen(study, "fetch_checkpoint", None)
    assert "fetch_model" in refusal.value.remedy and "fetch_checkpoint" not in refusal.value.remedy


def test_a_measurement_is_not_made_again(study: Study, results: Path, tmp_path: Path) -> None:
    with pytest.raises(ReproquantError, match="it measures time"):
        rederive(results, chosen(study, "benchmark", "llama-f16"), 1, tmp_path / "log")


def test_the_report_is_made_again_from_its_inputs_with_the_same_bytes(
    study: Study, results: Path, tmp_path: Path
) -> None:
    before = {path: sha256_file(path) for path in results.rglob("*") if path.is_file()}
    compared = rederive(results, chosen(study, "report", None), 1, tmp_path / "log")
    names = ("index.html", "report.md", "report.json", "claims.json")
    assert {one.file for one in compared} == {f"report/{name}" for name in names}
    assert all(one.same for one in compared)
    assert {path: sha256_file(path) for path in results.rglob("*") if path.is_file()} == before
    assert not list((results / ".scratch").iterdir())


def test_an_artifact_that_comes_out_otherwise_is_told(study: Study, results: Path, tmp_path: Path) -> None:
    record = results / "report/report.json.prov.json"
    content = record.read_text()
    digest = next(item for item in read_json(record)["subject"] if item["name"] == "report/report.md")
    (results / "root.json").unlink()
    try:
        record.write_text(content.replace(digest["digest"]["sha256"], "0" * 64))
        compared = rederive(results, chosen(study, "report", None), 1, tmp_path / "log")
    finally:
        record.write_text(content)
    assert [one.file for one in compared if not one.same] == ["report/report.md"]
