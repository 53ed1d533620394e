"""Quality in the report: every format's divergence beside its size, and what AutoFP8's bug does."""

from __future__ import annotations

from pathlib import Path

import pytest

from report_fixture import make_results
from reproquant import report
from reproquant.errors import FormatError
from reproquant.files import read_json, write_json


def built(results: Path) -> Path:
    report.build(results, results.parent / "report")
    return results.parent / "report"


def row(page: str, name: str, section: str) -> str:
    table = page.split(f"## {section}\n")[1].split("\n## ")[0]
    return next(line for line in table.splitlines() if line.startswith(f"| {name}"))


def test_each_artifact_has_its_divergence_size_and_fastest_subject_in_one_row(tmp_path: Path) -> None:
    page = (built(make_results(tmp_path)) / "report.md").read_text()
    cells = [cell.strip() for cell in row(page, "Q4\\_K\\_M", "Quality").split("|")[1:-1]]
    assert cells[1:4] == ["weights only", "124 MB", "12.6"]
    assert cells[5:8] == ["0.0310 ± 0.00155", "91.2", "0.0317"]
    assert cells[8].endswith("(llama-q4km)")
    assert "made for this alone" in row(page, "fp8-autofp8", "Quality")


def test_an_unstable_subject_whose_place_is_certain_is_its_artifacts_fastest(tmp_path: Path) -> None:
    results = make_results(tmp_path)
    path = results / "bench/llama-q4km.json"
    write_json(path, read_json(path) | {"status": "unstable", "reasons": ["it swings"]})
    page = (built(results) / "report.md").read_text()
    assert row(page, "Q4\\_K\\_M", "Quality").endswith("(llama-q4km) |")


def test_two_divergences_of_a_gguf_are_explained_where_both_stand(tmp_path: Path) -> None:
    results = make_results(tmp_path)
    words = "llama.cpp's CPU kernels, which round activations too"
    assert words in (built(results) / "report.md").read_text()
    for name in ("f16", "Q4_K_M"):
        path = results / f"quality/{name}.json"
        write_json(path, read_json(path) | {"llama_cpp": None})
    assert words not in (built(results) / "report.md").read_text()


def test_a_subject_shows_the_divergence_of_what_it_serves(tmp_path: Path) -> None:
    page = (built(make_results(tmp_path)) / "report.md").read_text()
    assert row(page, "llama-q4km", "Subjects").endswith("| 0.0310 |")
    assert row(page, "vllm-bf16", "Subjects").endswith("| original |")


def test_the_frontier_holds_what_no_other_beats_in_both_size_and_divergence(tmp_path: Path) -> None:
    target = built(make_results(tmp_path))
    entries = read_json(target / "report.json")["quality"]
    assert [one["artifact"] for one in entries if one["unbeaten"]] == ["f16", "Q4_K_M", "fp8-w8a16"]
    assert "Beaten in both by no other: f16, Q4_K_M, fp8-w8a16." in (target / "index.html").read_text()


@pytest.mark.parametrize(
    ("mode", "buggy", "mended"), [("corrected", 0.018, 0.012), ("autofp8", 0.012, 0.018)]
)
def test_the_effect_of_autofp8s_bug_is_the_ratio_of_the_two_calibrations(
    mode: str, buggy: float, mended: float, tmp_path: Path
) -> None:
    results = make_results(tmp_path)
    study = read_json(results / "study.json")
    study["fp8"]["activation_scales"] = mode
    if mode == "autofp8":
        study["quality"]["artifacts"].append("fp8-corrected")
        study["quality"]["artifacts"].remove("fp8-autofp8")
        (results / "quality/fp8-autofp8.json").rename(results / "quality/fp8-corrected.json")
    write_json(results / "study.json", study)
    numbers = {one["id"]: one["value"] for one in read_json(built(results) / "report.json")["numbers"]}
    assert numbers["quality.autofp8_bug"] == pytest.approx(buggy / mended)


def test_a_study_that_evaluates_nothing_has_no_section_and_no_column(tmp_path: Path) -> None:
    results = make_results(tmp_path)
    study = read_json(results / "study.json")
    study["quality"]["artifacts"] = []
    write_json(results / "study.json", study)
    page = (built(results) / "report.md").read_text()
    assert "Quality" not in page
    assert "divergence" not in page


def test_a_file_that_is_no_evaluation_is_refused_by_its_name(tmp_path: Path) -> None:
    results = make_results(tmp_path)
    write_json(results / "quality/fp8.json", {"artifact": "fp8"})
    with pytest.raises(FormatError, match=r"quality/fp8\.json"):
        built(results)
