"""The report shows what was read out of the engines: machine code and vLLM's minimum capabilities."""

from __future__ import annotations

from pathlib import Path

import pytest

from report_fixture import CAPABILITIES, make_results
from reproquant import report
from reproquant.files import read_json, write_json
from reproquant.report.numbers import Numbers
from reproquant.report.proofs import read_proofs

PROGRAM = {
    "program": "llama-server",
    "bytes": 123_456_789,
    "images": {"sm_70": 31, "compute_70": 2},
    "machine_code": {
        "sm_70": {
            "images": 31,
            "kernels": 905,
            "code_bytes": 22_000_000,
            "longest": "x",
            "named": {"mul_mat_q": {"kernels": 64, "code_bytes": 1_210_000, "longest": "y"}},
        }
    },
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return make_results(tmp_path)


def test_machine_code_is_shown_by_architecture_with_its_named_kernels(results: Path) -> None:
    write_json(results / "llama_cpp/machine_code.json", PROGRAM)
    report.build(results, results / "report")
    text = (results / "report/report.md").read_text().replace("\\_", "_")
    assert "llama-server (123 MB) holds 2 images for compute_70, 31 images for sm_70" in text
    assert "| sm_70 | 31 | all | 905 | 22.0 MB |" in text
    assert "| sm_70 | 31 | mul_mat_q | 64 | 1.21 MB |" in text
    numbers = {number["id"]: number for number in read_json(results / "report/report.json")["numbers"]}
    named = numbers["machine_code.sm_70.named.mul_mat_q.kernels"]
    assert (named["value"], named["source"]["path"]) == (64, "llama_cpp/machine_code.json")
    page = (results / "report/index.html").read_text()
    assert f'href="#number:{named["id"]}"' in page and "Read out of the engines" in page


def test_minimums_stand_beside_the_table_and_refusals_are_quoted(results: Path) -> None:
    report.build(results, results / "report")
    text = (results / "report/report.md").read_text()
    assert "The source of vLLM 0.32.0+cpu, read before it was measured." in text
    assert "| fp8 | 75 | 75 |" in text
    assert f"- {CAPABILITIES['refusals'][0]}" in text


def test_a_version_that_the_table_has_no_minimum_of_is_said_to_be_one(results: Path) -> None:
    write_json(results / "vllm/capabilities.json", CAPABILITIES | {"compared": []})
    report.build(results, results / "report")
    assert (
        "The compatibility table has no minimum for this version."
        in (results / "report/report.md").read_text()
    )


def test_a_study_without_proofs_has_no_such_section(results: Path) -> None:
    (results / "vllm/capabilities.json").unlink()
    assert read_proofs(Numbers(results)) is None
    report.build(results, results / "report")
    assert "Read out of the engines" not in (results / "report/index.html").read_text()
