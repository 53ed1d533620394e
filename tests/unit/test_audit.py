"""The audit: a sound study has no finding, and each damage is found and told by the right file's name."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from finished_study import finish, record
from reproquant import recipe as recipes
from reproquant.cli import app
from reproquant.files import read_json, sha256_file, write_json
from reproquant.provenance.artifacts import artifacts
from reproquant.provenance.audit import audit
from reproquant.provenance.digests import Digests
from reproquant.provenance.findings import EXIT_CODES, Finding, Kind, exit_code
from reproquant.provenance.root import parse, seal
from reproquant.study import Study


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up study, finished once; its store lies beside its results."""
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPROQUANT_STORE", str(root / "store"))
        return finish(root)


@pytest.fixture
def results(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, free to be damaged."""
    shutil.copytree(original.parents[1], tmp_path / "copy")
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "copy/store"))
    return tmp_path / "copy/results" / original.name


def found(results: Path) -> list[Finding]:
    return audit(results, Digests())


def told(results: Path) -> set[tuple[str, str]]:
    """Kind and file of each finding; files of the store by their place in it."""
    store = str(results.parents[1] / "store") + "/"
    return {(finding.kind.value, finding.file.replace(store, "")) for finding in found(results)}


def flip(path: Path) -> None:
    """Change one bit and leave size and times as they were."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def edit(path: Path, change: Callable[[dict], object]) -> None:
    data = read_json(path)
    change(data)
    write_json(path, data)


def test_a_finished_study_has_no_finding(results: Path) -> None:
    assert found(results) == []


@pytest.mark.parametrize(
    "name",
    [
        "gguf/f16.gguf", "gguf/Q4_K_M.inspect.json", "bench/llama-q4km.json", "model/manifest.json",
        "model/checkpoint/model.safetensors", "fp8/checkpoint/config.json", "fp8/facts.json",
        "llama_cpp/bin/llama-server", "llama_cpp/build.json", "environments/fp8.json", "report/index.html",
        "report/report.md", "root.json", "study.json",
    ],
)  # fmt: skip
def test_one_flipped_bit_is_found_though_the_time_stayed(name: str, results: Path) -> None:
    flip(results / name)
    assert told(results) == {("tampered", name)}


@pytest.mark.parametrize("name", ["bench/llama-q4km.json", "gguf/f16.gguf", "report/report.json"])
def test_an_edited_record_is_found_even_if_it_is_the_last_of_the_chain(name: str, results: Path) -> None:
    path = results / f"{name}.prov.json"
    edit(path, lambda data: data["predicate"]["runDetails"]["metadata"].update(startedOn="2020-01-01"))
    assert told(results) == {("broken chain", f"{name}.prov.json")}


def test_a_digest_edited_in_a_record_is_no_finding_against_the_artifact(results: Path) -> None:
    path = results / "gguf/Q4_K_M.gguf.prov.json"
    edit(path, lambda data: data["subject"][0]["digest"].update(sha256="0" * 64))
    assert told(results) == {("broken chain", "gguf/Q4_K_M.gguf.prov.json")}


def test_two_swapped_records_are_both_found(results: Path) -> None:
    one, other = results / "gguf/f16.gguf.prov.json", results / "gguf/Q4_K_M.gguf.prov.json"
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)
    assert told(results) == {("broken chain", str(path.relative_to(results))) for path in (one, other)}


def test_an_older_artifact_with_its_own_record_put_back_is_found(results: Path) -> None:
    study = Study.load(results / "study.json")
    older = next(one for one in artifacts(study) if one.main == "gguf/Q4_K_M.gguf")
    (results / older.main).write_bytes(b"GGUF as an earlier run made it")
    record(results, study, older, started="2025-01-01T00:00:00.000+00:00")
    assert told(results) == {("broken chain", older.record), ("tampered", older.main)}


def test_an_older_record_put_back_is_found_without_a_root(results: Path) -> None:
    study = Study.load(results / "study.json")
    older = next(one for one in artifacts(study) if one.main == "gguf/f16.gguf")
    record(results, study, older, started="2025-01-01T00:00:00.000+00:00")
    (results / "root.json").unlink()
    assert told(results) == {
        ("missing", "root.json"),
        ("broken chain", "gguf/Q4_K_M.gguf.prov.json"),
        ("broken chain", "gguf/f16.inspect.json.prov.json"),
        ("broken chain", "bench/llama-f16.json.prov.json"),
        ("broken chain", "bench/again/llama-f16.json.prov.json"),
        ("broken chain", "quality/f16.json.prov.json"),
    }


def test_an_edited_number_of_the_report_is_named(results: Path) -> None:
    path = results / "report/report.json"
    edit(path, lambda data: data["numbers"][5].update(value=data["numbers"][5]["value"] * 2))
    id = read_json(path)["numbers"][5]["id"]
    assert told(results) == {("tampered", "report/report.json")}
    assert any(f"'{id}'" in finding.what for finding in found(results))


def test_an_edited_result_of_a_formula_is_named(results: Path) -> None:
    path = results / "report/report.json"
    index, number = next(
        (index, one) for index, one in enumerate(read_json(path)["numbers"]) if "derived" in one
    )
    edit(path, lambda data: data["numbers"][index].update(value=9.9))
    assert any(f"number '{number['id']}' isn't what its source says" in one.what for one in found(results))


@pytest.mark.parametrize(
    "name", ["gguf/f16.gguf", "gguf/f16.gguf.prov.json", "root.json", "study.json", "model/checkpoint/config.json"]
)  # fmt: skip
def test_a_deleted_file_is_missing(name: str, results: Path) -> None:
    (results / name).unlink()
    assert told(results) == {("missing", name)}


@pytest.mark.parametrize("name", ["model/checkpoint/extra.safetensors", "llama_cpp/bin/libplanted.so"])
def test_a_file_that_nothing_lists_is_found(name: str, results: Path) -> None:
    (results / name).write_bytes(b"planted")
    assert told(results) == {("tampered", name)}


def packages(results: Path) -> Path:
    return next((results.parents[1] / "store/environments").glob("fp8-*/lib/python3.11/site-packages"))


@pytest.mark.parametrize(("name", "kind"), [("fp8/core.py", "tampered"), ("sitecustomize.py", "tampered")])
def test_a_changed_or_planted_file_of_an_environment_is_named(name: str, kind: str, results: Path) -> None:
    path = packages(results) / name
    path.write_text("import os")
    place = path.relative_to(results.parents[1] / "store")
    assert told(results) == {(kind, str(place))}


def test_a_file_deleted_from_an_environment_is_missing(results: Path) -> None:
    path = packages(results) / "fp8/core.py"
    path.unlink()
    assert told(results) == {("missing", str(path.relative_to(results.parents[1] / "store")))}


def test_a_list_of_installed_files_that_was_changed_with_its_file_is_found(results: Path) -> None:
    path = packages(results) / "fp8-1.0.dist-info/RECORD"
    (packages(results) / "fp8/core.py").unlink()
    path.write_text("".join(line for line in path.open() if "core.py" not in line))
    assert [finding.kind for finding in found(results)] == [Kind.TAMPERED]
    assert "RECORD" in found(results)[0].file


def test_an_environment_that_the_store_has_not_got_is_missing(results: Path) -> None:
    shutil.rmtree(packages(results).parents[2])
    assert {kind for kind, _ in told(results)} == {"missing"}


def test_a_recipe_that_is_no_longer_todays_is_stale_and_the_part_is_named(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    today = recipes.recipe

    def edited(stage: str, study: Study, frozen: dict, **wildcards: str) -> dict:
        data = today(stage, study, frozen, **wildcards)
        if stage == "quantize_gguf":
            data["code"] = {**data["code"], "reproquant/gguf/quantize.py": "0" * 64}
        if stage == "convert_gguf":
            data["locks"] = {"converter": "1" * 64}
        if stage == "quantize_fp8":
            data["study"] = {**data["study"], "calibration": {**data["study"]["calibration"], "rows": 99}}
        return data

    monkeypatch.setattr("reproquant.provenance.chain.recipe", edited)
    stale = found(results)
    assert {(one.kind, one.file, one.what.split(" has changed")[0]) for one in stale} == {
        (Kind.STALE, "gguf/Q4_K_M.gguf", "code file reproquant/gguf/quantize.py"),
        (Kind.STALE, "gguf/f16.gguf", "lock converter"),
        (Kind.STALE, "fp8/manifest.json", "study key calibration.rows"),
    }
    rows = next(one for one in stale if "rows" in one.what)
    assert (rows.expected, rows.found) == ("16", "99")


def test_a_study_that_a_later_run_wrote_is_told_from_a_damaged_one(results: Path) -> None:
    edit(results / "study.json", lambda data: data["benchmark"].update(seed=99))
    (finding,) = found(results)
    assert (finding.kind, finding.file) == (Kind.BROKEN, "study.json")


def test_the_gravest_finding_gives_the_exit_code() -> None:
    def of(*kinds: Kind) -> int:
        return exit_code([Finding(kind, "", "", "", "", "") for kind in kinds])

    assert of() == 0
    assert [of(kind) for kind in (Kind.TAMPERED, Kind.BROKEN, Kind.STALE, Kind.MISSING)] == [3, 4, 5, 6]
    assert of(Kind.STALE, Kind.MISSING) == EXIT_CODES[Kind.MISSING]
    assert of(Kind.MISSING, Kind.BROKEN) == EXIT_CODES[Kind.BROKEN]
    assert of(*Kind) == EXIT_CODES[Kind.TAMPERED]


def test_a_remedy_is_a_command_that_names_the_file_for_snakemake(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(results / "model/checkpoint/config.json")
    monkeypatch.chdir(results)
    (here,) = found(Path())
    assert here.remedy.endswith(f" --forcerun results/{results.name}/model/manifest.json")
    (finding,) = found(results)
    assert finding.remedy.startswith("snakemake --cores all --configfile ")
    assert finding.remedy.endswith(f" --forcerun results/{results.name}/model/manifest.json")


def test_each_byte_is_read_once_and_large_files_that_are_trusted_are_not(results: Path) -> None:
    first = Digests()
    audit(results, first)
    assert first.bytes_read == sum(stamp[0] for stamp in first.stamps.values())
    again = Digests(Digests.remembered(first.memory()))
    assert audit(results, again) == []
    assert again.unread == {path for path, stamp in first.stamps.items() if stamp[0] >= 1 << 16}
    weights = results / "model/checkpoint/model.safetensors"
    assert weights in again.unread
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    quick = Digests(Digests.remembered(first.memory()))
    assert [finding.file for finding in audit(results, quick)] == ["model/checkpoint/model.safetensors"]


def test_the_root_is_a_pure_function_of_the_records(results: Path) -> None:
    write_json(results / "again.json", seal(results))
    assert sha256_file(results / "again.json") == sha256_file(results / "root.json")
    assert parse((results / "root.json").read_bytes()) is not None


def test_the_command_prints_a_line_a_finding_and_a_summary_and_exits_with_the_code(results: Path) -> None:
    sound = CliRunner().invoke(app, ["audit", str(results)])
    assert (sound.exit_code, sound.stdout.count("\n")) == (0, 1)
    assert ": sound (" in sound.stdout
    flip(results / "gguf/f16.gguf")
    (results / "fp8/facts.json").unlink()
    damaged = CliRunner().invoke(app, ["audit", str(results)])
    assert (damaged.exit_code, damaged.stdout.count("\n")) == (3, 3)
    assert "1 tampered, 1 missing" in damaged.stdout
    data = json.loads(CliRunner().invoke(app, ["audit", str(results), "--json"]).stdout)
    assert {finding["file"] for finding in data["findings"]} == {"gguf/f16.gguf", "fp8/facts.json"}
    assert data["exit_code"] == 3


def test_a_quick_audit_reads_no_large_file_again_and_says_so(results: Path) -> None:
    CliRunner().invoke(app, ["audit", str(results)])
    answer = CliRunner().invoke(app, ["audit", str(results), "--quick"])
    assert re.search(r"--quick: [1-9] were not read, size and times are as they were", answer.stdout)
    assert "--quick" not in CliRunner().invoke(app, ["audit", str(results)]).stdout


def test_results_of_another_machine_are_audited_without_its_environments(results: Path) -> None:
    shutil.rmtree(results.parents[1] / "store")
    answer = CliRunner().invoke(app, ["audit", str(results), "--no-environments"])
    assert answer.exit_code == 0
    assert "environments were not checked" in answer.stdout


def test_a_folder_that_is_not_there_is_told_in_three_lines(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["audit", str(tmp_path / "none")])
    assert answer.exit_code == 2
    assert answer.stderr.count("\n") == 3
