"""The stage: all or nothing, with a record, and three lines for a known failure."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from jsonschema import validate

from reproquant.files import canonical_json, read_json, repository, write_json
from reproquant.recipe import recipe, recipe_digest
from reproquant.study import Study

ROOT = repository()
STUDY = Study.resolve(yaml.safe_load((ROOT / "config.yaml").read_text()))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_json(tmp_path / "study.json", STUDY.dump())
    (tmp_path / "input.bin").write_bytes(b"in")
    return tmp_path


@pytest.fixture
def kept(results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results with a store of their own."""
    monkeypatch.setenv("REPROQUANT_STORE", str(results / "store"))
    return results


def run(
    results: Path, body: str, digest: str = "", stage: str = "fetch_model", **wildcards: str
) -> subprocess.CompletedProcess[str]:
    """Run ``body`` inside a stage in a process of its own, as a rule would."""
    program = textwrap.dedent("""
        import os, signal
        from pathlib import Path
        from reproquant.errors import FormatError
        from reproquant.stage import stage
        root = Path({root!r})
        with stage({stage!r}, root / "study.json", {digest!r}, root / "logs/x.log", [root / "input.bin"],
                   root / "out/made.json", **{wildcards!r}) as run:
        {body}
    """).format(
        root=str(results),
        stage=stage,
        digest=digest or recipe_digest(stage, STUDY, **wildcards),
        wildcards=wildcards,
        body=textwrap.indent(textwrap.dedent(body), "    "),
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


MAKE_GGUF = """
run.scratch(root / "out/tree").mkdir()
(run.scratch(root / "out/tree") / "big.bin").write_bytes(bytes(2 << 20))
run.scratch(root / "out/made.json").write_text('{"a": 1}')
"""
MAKE = """
run.scratch(root / "out/tree").mkdir()
(run.scratch(root / "out/tree") / "a.txt").write_text("a")
run.scratch(root / "out/made.json").write_text("{}")
"""


def test_a_finished_stage_leaves_its_outputs_a_record_and_no_scratch(results: Path) -> None:
    assert run(results, MAKE).returncode == 0
    assert (results / "out/tree/a.txt").read_text() == "a"
    record = read_json(results / "out/made.json.prov.json")
    validate(record, read_json(ROOT / "workflow/schemas/record.schema.json"))
    assert record["subject"] == [
        {"name": "out/made.json", "digest": {"sha256": hashlib.sha256(b"{}").hexdigest()}}
    ]
    definition = record["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == recipe("fetch_model", STUDY)
    assert definition["resolvedDependencies"] == [
        {
            "name": "input.bin",
            "digest": {"sha256": hashlib.sha256(b"in").hexdigest()},
            "annotations": {"record_sha256": None},
        }
    ]
    assert not list((results / ".scratch").iterdir())


def test_a_record_names_the_records_of_its_inputs(results: Path) -> None:
    record = results / "input.bin.prov.json"
    digest = hashlib.sha256(b"in").hexdigest()
    record.write_text(json.dumps({"subject": [{"name": "input.bin", "digest": {"sha256": digest}}]}))
    assert run(results, MAKE).returncode == 0
    made = read_json(results / "out/made.json.prov.json")
    dependency = made["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert dependency["annotations"]["record_sha256"] == hashlib.sha256(record.read_bytes()).hexdigest()


def test_a_known_failure_is_three_lines_on_the_terminal_and_in_the_log_and_exit_code_2(results: Path) -> None:
    done = run(results, MAKE + 'raise FormatError("x.gguf", "it is cut short", "fetch it again")')
    assert done.returncode == 2
    message = "error: x.gguf\n  why: it is cut short\n  do:  fetch it again\n"
    assert done.stderr.endswith(message)
    assert (results / "logs/x.log").read_text().endswith(message)
    assert not (results / "out").exists()


def test_an_error_of_the_operating_system_names_the_file_and_no_traceback_reaches_the_terminal(
    results: Path,
) -> None:
    done = run(results, 'open(root / "nothing-here").read()')
    assert done.returncode == 2
    assert "nothing-here" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_says_so(results: Path) -> None:
    done = run(results, 'raise OSError(28, "No space left on device", "out/made.json")')
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "free some space" in done.stderr


def test_a_stage_that_is_killed_leaves_nothing_that_counts(results: Path) -> None:
    done = run(results, MAKE + "os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -9
    assert not (results / "out").exists()
    assert run(results, MAKE).returncode == 0


def test_code_that_changed_since_the_plan_is_noticed_before_any_work(results: Path) -> None:
    done = run(results, MAKE, digest="0" * 64)
    assert done.returncode == 2
    assert "changed between the plan and this job" in done.stderr
    assert not (results / "out").exists()


def test_a_tree_of_an_earlier_run_is_replaced_whole(results: Path) -> None:
    (results / "out/tree").mkdir(parents=True)
    (results / "out/tree/old.txt").write_text("old")
    assert run(results, MAKE).returncode == 0
    assert [path.name for path in (results / "out/tree").iterdir()] == ["a.txt"]


def test_canonical_json_is_the_same_for_equal_values() -> None:
    assert (
        canonical_json({"b": 1, "a": [1, "é"]})
        == canonical_json({"a": [1, "é"], "b": 1})
        == '{"a":[1,"é"],"b":1}'
    )


def test_a_finished_result_answers_the_same_work_from_the_store(kept: Path) -> None:
    assert run(kept, MAKE_GGUF, stage="inspect_gguf", type="f16").returncode == 0
    (kept / "out/made.json").unlink()
    (kept / "out/made.json.prov.json").unlink()
    again = run(kept, "raise AssertionError('the body ran')", stage="inspect_gguf", type="f16")
    assert again.returncode == 0, again.stderr
    assert "answered from the store" in again.stderr
    assert read_json(kept / "out/made.json") == {"a": 1}
    assert (kept / "out/tree/big.bin").stat().st_size == 2 << 20
    facts = read_json(kept / "out/made.json.prov.json")["predicate"]["buildDefinition"]["internalParameters"]
    assert facts["stored"]["answered"] is True


@pytest.mark.parametrize("side", ["the result", "the store"])
@pytest.mark.parametrize("name", ["tree/big.bin", "made.json"])
def test_a_damaged_byte_on_either_side_is_never_believed(side: str, name: str, kept: Path) -> None:
    run(kept, MAKE_GGUF, stage="inspect_gguf", type="f16")
    store = next((kept / "store/results").iterdir())
    damaged = (kept / "out" if side == "the result" else store / "out") / name
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    again = run(kept, MAKE_GGUF, stage="inspect_gguf", type="f16")
    assert again.returncode == 0, again.stderr
    assert read_json(kept / "out/made.json") == {"a": 1}
    assert (kept / "out/tree/big.bin").read_bytes() == bytes(2 << 20)


def test_other_input_bytes_are_other_work(kept: Path) -> None:
    run(kept, MAKE_GGUF, stage="inspect_gguf", type="f16")
    (kept / "input.bin").write_bytes(b"other")
    again = run(kept, MAKE_GGUF, stage="inspect_gguf", type="f16")
    assert "answered from the store" not in again.stderr


def test_a_result_that_is_not_worth_keeping_is_not_kept(kept: Path) -> None:
    run(kept, MAKE_GGUF + "run.worth_keeping = False", stage="inspect_gguf", type="f16")
    assert not (kept / "store/results").exists()


GO_ON = """
left = run.unfinished()
print("found:", sorted(path.name for path in left.iterdir()))
(left / "half").write_text("half")
"""


def test_a_killed_stage_finds_its_unfinished_work_again_and_a_finished_one_leaves_none(kept: Path) -> None:
    def go_on(more: str) -> str:
        done = run(kept, GO_ON + more, stage="quantize_gguf", type="Q4_K_M")
        return (kept / "logs/x.log").read_text() + f"code {done.returncode}"

    assert "found: []" in go_on("os.kill(os.getpid(), signal.SIGKILL)")
    assert not (kept / "out").exists()
    assert "found: ['half']" in go_on('raise FormatError("x", "y", "z")')
    assert "found: ['half']" in go_on(MAKE)
    assert not list((kept / ".unfinished").iterdir())


def test_unfinished_work_on_other_inputs_is_removed_not_found(kept: Path) -> None:
    run(kept, GO_ON + "os.kill(os.getpid(), signal.SIGKILL)", stage="quantize_gguf", type="Q4_K_M")
    (kept / "input.bin").write_bytes(b"other")
    run(kept, GO_ON + "os.kill(os.getpid(), signal.SIGKILL)", stage="quantize_gguf", type="Q4_K_M")
    assert "found: []" in (kept / "logs/x.log").read_text()
    assert len(list((kept / ".unfinished/quantize_gguf-Q4_K_M").iterdir())) == 1
