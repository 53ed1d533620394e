"""Published results go by the graph that they were made with, and every damage to them is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from finished_study import finish
from reproquant.cli import app
from reproquant.errors import FormatError
from reproquant.files import digest_of, read_json, repository, sha256_file, write_json
from reproquant.provenance.artifacts import REPORT, Artifact, artifacts
from reproquant.provenance.audit import audit
from reproquant.provenance.digests import Digests
from reproquant.provenance.evidence import Evidence
from reproquant.provenance.findings import Finding
from reproquant.provenance.published import publish
from reproquant.study import Study

RECORD = REPORT + ".prov.json"
Told = set[tuple[str, str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The made-up study as a run leaves it; its store is the tests'."""
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPROQUANT_STORE", str(root / "store"))
        yield finish(root)


@pytest.fixture(scope="module")
def original(finished: Path) -> Path:
    """It, published; nobody damages this one."""
    target = finished.parents[1] / "published"
    publish(finished, target)
    return target


@pytest.fixture
def published(original: Path, tmp_path: Path) -> Path:
    """A copy, free to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "published"))


@contextmanager
def put_back(published: Path, original: Path) -> Iterator[None]:
    """Undo what the body does to the copy."""
    yield
    shutil.rmtree(published)
    shutil.copytree(original, published)


def found(results: Path) -> list[Finding]:
    return audit(results, Digests())


def told(results: Path) -> Told:
    return {(finding.kind.value, finding.file) for finding in found(results)}


def records(published: Path) -> list[str]:
    return sorted(path.relative_to(published).as_posix() for path in published.rglob("*.prov.json"))


def reseal(published: Path) -> None:
    """A root anew for the records that are there, as somebody would write it who covers up."""
    body = {key: read_json(published / "root.json")[key] for key in ("study", "study_sha256")}
    body["records"] = {name: sha256_file(published / name) for name in records(published)}
    write_json(published / "root.json", {**body, "sha256": digest_of(body)})


def test_what_a_killed_verification_left_behind_is_no_part_of_the_results(published: Path) -> None:
    left = published / ".scratch/again-0/published/gguf/f16.gguf.prov.json"
    left.parent.mkdir(parents=True)
    shutil.copyfile(published / "gguf/f16.gguf.prov.json", left)
    assert found(published) == []


def inputs(record: dict[str, Any]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = record["predicate"]["buildDefinition"]["resolvedDependencies"]
    return listed


def vanish(published: Path, record: str) -> list[str]:
    """Remove a record, what it tells of, and every word of it in published.json."""
    names = [subject["name"] for subject in read_json(published / record)["subject"]]
    for name in (record, *names):
        (published / name).unlink(missing_ok=True)
    listed = read_json(published / "published.json")
    listed["withheld"] = [file for file in listed["withheld"] if file["path"] not in names]
    write_json(published / "published.json", listed)
    return names


def write_report_anew(published: Path, report: dict[str, Any]) -> None:
    """A report with a record and a root that fit it."""
    write_json(published / REPORT, report)
    record = read_json(published / RECORD)
    for subject in record["subject"]:
        if subject["name"] == REPORT:
            subject["digest"]["sha256"] = sha256_file(published / REPORT)
    write_json(published / RECORD, record)
    reseal(published)


def test_the_records_tell_the_graph_that_the_workflow_had(published: Path) -> None:
    study = Study.load(published / "study.json")

    def facts(graph: tuple[Artifact, ...]) -> dict[str, tuple[object, ...]]:
        return {
            one.record: (one.stage, one.wildcards, one.main, one.needs, sorted(one.outputs.values()))
            for one in graph
        }

    assert facts(Evidence.gather(published, study, Digests()).artifacts) == facts(artifacts(study))


def test_a_changed_byte_of_any_file_is_found_and_the_file_is_named(published: Path, original: Path) -> None:
    names = sorted(path.relative_to(original).as_posix() for path in original.rglob("*") if path.is_file())
    assert len(names) > 50 and RECORD in names
    for name in set(names) - {"published.json"}:
        with put_back(published, original):
            content = bytearray((published / name).read_bytes())
            content[len(content) // 2] ^= 1
            (published / name).write_bytes(content)
            assert {file for _, file in told(published)} == {name}


def test_a_changed_byte_of_what_is_withheld_makes_something_missing(published: Path) -> None:
    listed = read_json(published / "published.json")
    for number, file in enumerate(listed["withheld"]):
        sha256 = f"{int(file['sha256'], 16) ^ 1:064x}"
        withheld = [{**file, "sha256": sha256} if place == number else file for place, file in
                    enumerate(listed["withheld"])]  # fmt: skip
        write_json(published / "published.json", {"withheld": withheld})
        assert told(published) == {("missing", file["path"])}


def test_a_removed_record_is_missing_and_nothing_else_is_blamed(published: Path, original: Path) -> None:
    for name in records(original):
        with put_back(published, original):
            (published / name).unlink()
            assert told(published) == {("missing", name)}


def test_a_removed_record_is_found_though_the_root_was_written_anew(published: Path, original: Path) -> None:
    for name in records(original):
        with put_back(published, original):
            (published / name).unlink()
            reseal(published)
            assert told(published) >= whose_input_vanished(original, name)


def test_an_artifact_removed_with_its_record_is_missing(published: Path, original: Path) -> None:
    for name in records(original):
        with put_back(published, original):
            vanish(published, name)
            assert {("missing", name), ("missing", name.removesuffix(".prov.json"))} <= told(published)


def test_an_artifact_removed_from_the_root_as_well_is_missed_by_all_that_was_made_from_it(
    published: Path, original: Path
) -> None:
    for name in records(original):
        with put_back(published, original):
            vanish(published, name)
            reseal(published)
            assert told(published) >= whose_input_vanished(original, name)


def whose_input_vanished(original: Path, record: str) -> Told:
    """The findings that a record's absence from the root must give; of the report's, that it isn't there."""
    if record == RECORD:
        return {("missing", RECORD), ("broken chain", "root.json")}
    outputs = {subject["name"] for subject in read_json(original / record)["subject"]}
    users = [
        one
        for one in records(original)
        if outputs & {item["name"] for item in inputs(read_json(original / one))}
    ]
    assert users
    return {("broken chain", user) for user in users}


@pytest.mark.parametrize("damage", ["one fewer", "one more", "other bytes", "another record"])
def test_a_record_whose_inputs_were_altered_is_found(damage: str, published: Path, original: Path) -> None:
    for name in records(original):
        record = read_json(original / name)
        if not (listed := inputs(record)):
            continue
        last, other = listed[-1], "0" * 64
        match damage:
            case "one fewer":
                listed.remove(last)
            case "one more":
                listed.append({**last, "name": "model/other.json"})
            case "other bytes":
                last["digest"]["sha256"] = other
            case "another record":
                last["annotations"]["record_sha256"] = other
        with put_back(published, original):
            write_json(published / name, record)
            assert told(published) == {("broken chain", name)}
            reseal(published)
            assert told(published)


def test_the_report_keeps_each_input_by_name_though_record_and_root_were_written_anew(
    published: Path, original: Path
) -> None:
    record = read_json(original / RECORD)
    for stage in {item["annotations"]["record_sha256"] for item in inputs(record)}:
        with put_back(published, original):
            fewer = read_json(original / RECORD)
            left = [item for item in inputs(record) if item["annotations"]["record_sha256"] != stage]
            inputs(fewer)[:] = left
            write_json(published / RECORD, fewer)
            reseal(published)
            assert told(published) == {("tampered", REPORT)}


def test_a_planted_record_is_one_that_the_root_does_not_name(published: Path) -> None:
    shutil.copyfile(published / "gguf/f16.inspect.json.prov.json", published / "gguf/f17.json.prov.json")
    assert ("broken chain", "root.json") in told(published)
    reseal(published)
    assert ("missing", "gguf/f17.json") in told(published)


def test_a_number_that_points_elsewhere_is_found(published: Path) -> None:
    report = read_json(published / REPORT)
    one, other = [number for number in report["numbers"] if "source" in number][:2]
    assert one["value"] != other["value"]
    one["source"] = other["source"]
    write_json(published / REPORT, report)
    assert told(published) == {("tampered", REPORT)}
    write_report_anew(published, report)
    assert [finding.what for finding in found(published)] == [
        f"number '{one['id']}' isn't what its source says"
    ]


def test_a_number_that_points_to_a_file_beside_the_study_is_found(published: Path) -> None:
    report = read_json(published / REPORT)
    number = next(number for number in report["numbers"] if "source" in number)
    write_json(published / "bench/planted.json", {"better": number["value"]})
    sha256 = sha256_file(published / "bench/planted.json")
    number["source"] = {"path": "bench/planted.json", "sha256": sha256, "pointer": "/better"}
    report["files"]["bench/planted.json"] = sha256
    write_report_anew(published, report)
    assert [finding.what for finding in found(published)] == [
        "it names bench/planted.json, and neither that nor its stage was an input of it"
    ]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Today's workflow is a later one: with a stage more, of which the report is made as well."""

    def grown(study: Study) -> tuple[Artifact, ...]:
        *others, report = artifacts(study)
        weighed = Artifact("weigh", (("build", "llama_cpp/build.json"),), {"output": "weight.json"})
        return (*others, weighed, replace(report, inputs=(*report.inputs, ("results", "weight.json"))))

    for module in ("evidence", "published", "root"):
        monkeypatch.setattr(f"reproquant.provenance.{module}.artifacts", grown)


def test_a_later_stage_and_input_leave_published_results_sound_and_make_a_runs_incomplete(
    published: Path, finished: Path, later: None
) -> None:
    assert told(published) == set()
    assert told(finished) == {
        ("missing", "weight.json"),
        ("missing", "weight.json.prov.json"),
        ("broken chain", "root.json"),
        ("broken chain", RECORD),
    }
    with pytest.raises(FormatError, match="complete"):
        publish(finished, published.parent / "again")


def test_damage_is_named_as_precisely_after_a_later_stage_came(published: Path, later: None) -> None:
    (published / "root.json").unlink()
    assert told(published) == {("missing", "root.json")}
    page = published / "report/report.md"
    page.write_text(page.read_text() + "\n")
    assert told(published) == {("missing", "root.json"), ("tampered", "report/report.md")}


def test_a_stage_that_a_later_workflow_has_no_more_still_counts(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shrunk(study: Study) -> tuple[Artifact, ...]:
        return tuple(one for one in artifacts(study) if one.stage != "inspect_gguf")

    monkeypatch.setattr("reproquant.provenance.evidence.artifacts", shrunk)
    assert told(published) == set()
    (published / "gguf/f16.inspect.json").unlink()
    assert told(published) == {("missing", "gguf/f16.inspect.json")}


@pytest.mark.parametrize("name", sorted(path.name for path in (repository() / "published").iterdir()))
def test_the_results_kept_in_this_repository_stay_sound_when_the_workflow_grows(
    name: str, later: None
) -> None:
    assert found(repository() / "published" / name) == []


def test_the_last_line_says_what_todays_workflow_would_make_as_well(published: Path, later: None) -> None:
    said = CliRunner().invoke(app, ["audit", str(published)])
    assert said.exit_code == 0 and "today's workflow would also make weight.json" in said.output
    data = json.loads(CliRunner().invoke(app, ["audit", "--json", str(published)]).output)
    assert data["made_since"] == ["weight.json"]
    (published / "report/report.md").unlink()
    assert "would also make" not in CliRunner().invoke(app, ["audit", str(published)]).output
