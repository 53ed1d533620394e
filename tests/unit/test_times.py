"""Where the time of a study went."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from finished_study import finish
from reproquant import process
from reproquant.cli import app
from reproquant.errors import FormatError
from reproquant.files import read_json, write_json
from reproquant.provenance.root import seal
from reproquant.provenance.times import covered, times


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(process, "PROGRAMS", {})
    return finish(tmp_path)


def at(seconds: float) -> str:
    return f"2026-01-01T00:{int(seconds) // 60:02}:{seconds % 60:06.3f}+00:00"


def retime(results: Path, artifact: str, span: tuple[float, float], *programs: tuple[float, float]) -> None:
    path = results / f"{artifact}.prov.json"
    record = read_json(path)
    record["predicate"]["runDetails"]["metadata"] = {
        "startedOn": at(span[0]),
        "finishedOn": at(span[1]),
        "programs": [{"name": "p", "startedOn": at(a), "finishedOn": at(b)} for a, b in programs],
    }
    write_json(path, record)


def test_overlapping_spans_count_once() -> None:
    assert covered([(0, 4), (1, 2), (3, 6), (10, 11)]) == 7
    assert covered([]) == 0


def test_a_short_gap_is_waiting_and_a_long_one_lies_between_two_runs() -> None:
    assert covered([(0, 4), (5, 6), (66, 70), (131, 132)], 60) == 70 + 1


def test_time_in_which_no_program_runs_is_the_workflows_own(results: Path) -> None:
    for path in results.rglob("*.prov.json"):
        retime(results, path.relative_to(results).as_posix().removesuffix(".prov.json"), (0, 1))
    retime(results, "llama_cpp/build.json", (0, 100), (1, 99))
    retime(results, "model/manifest.json", (0, 60))
    retime(results, "bench/llama-f16.json", (104, 200), (105, 150), (151, 199))
    write_json(results / "root.json", seal(results))
    found = times(results)
    assert found.whole == 200
    assert found.of_programs == pytest.approx(98 + 45 + 48)
    assert found.overhead == pytest.approx(9 / 191)
    said = CliRunner().invoke(app, ["times", "--results", str(results)]).output
    assert "200.0 s from" in said and "4.7% on top" in said


def test_records_that_tell_of_no_program_are_not_read_as_overhead(results: Path) -> None:
    with pytest.raises(FormatError, match="no record tells"):
        times(results)


def test_a_program_is_noted_from_its_start_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "PROGRAMS", {})
    process.run([sys.executable, "-c", "pass"], tmp_path / "log")
    server = process.spawn([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log")
    first, second = process.PROGRAMS.values()
    assert first.finished is not None and first.started <= first.finished <= second.started
    assert second.finished is None
    process.stop_group(server)
    assert second.finished is not None
