"""The drift sentinel: what of the baseline is measured again, and that nothing answers in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from finished_study import finish
from mock_engine import MockEngine, benchmark, subject, write_prompt
from reproquant.bench import session
from reproquant.bench.again import measure_again
from reproquant.bench.measurement import Measurement
from reproquant.engines.streamed import Streamed
from reproquant.files import read_json, sha256_file, write_json
from reproquant.machine import bandwidth, host
from reproquant.provenance.artifacts import artifacts
from reproquant.recipe import recipe
from reproquant.stage import _key
from reproquant.study import Study, Subject


@pytest.fixture
def prompt(tmp_path: Path) -> Path:
    return write_prompt(tmp_path)


@pytest.fixture(autouse=True)
def a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "busy_share", lambda: 0.0)
    monkeypatch.setattr(session, "DEATH_S", 0.5)


def again(behaviour: str, prompt: Path, engine: MockEngine | None = None) -> Measurement:
    study = benchmark(prompt, launches=2, rounds=3, rounds_if_unsteady=9)
    chosen = engine or MockEngine(times_ms=(10.0, 5.0))
    return measure_again(chosen, subject(behaviour), study, prompt.with_name("log"))


def test_the_baseline_is_asked_again_in_one_launch_with_lone_requests(prompt: Path) -> None:
    result = again("steady", prompt)
    assert result.status == "ok", result.reasons
    assert len(result.start_s) == 1
    assert [(one.launch, one.round, one.concurrency) for one in result.rounds] == [
        (0, 0, 1),
        (0, 1, 1),
        (0, 2, 1),
    ]
    assert {request.concurrency for request in result.warmup} == {1}


def test_a_baseline_that_breaks_the_second_time_is_a_finding_and_no_crash(prompt: Path) -> None:
    result = again("breaks", prompt)
    assert result.status == "failed" and "the mock broke" in (result.evidence or "")
    refused = again("steady", prompt, MockEngine("--refuse", "RuntimeError: no such device"))
    assert refused.status == "failed" and "no such device" in (refused.evidence or "")


def test_the_store_can_not_answer_for_it_when_a_subject_was_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    results = finish(tmp_path)
    study = Study.load(results / "study.json")
    sentinel = next(one for one in artifacts(study) if one.stage == "benchmark_again")

    def key() -> str | None:
        made = recipe(sentinel.stage, study, **sentinel.wildcards)
        return _key(sentinel.stage, made, [results / name for name in sentinel.needs], results)

    before = key()
    assert before and key() == before
    for name in ("llama-q4km", "vllm-bf16", "vllm-fp8"):
        measurement, record = results / f"bench/{name}.json", results / f"bench/{name}.json.prov.json"
        write_json(measurement, {**read_json(measurement), "start_s": [9.9]})
        made = read_json(record)
        made["subject"][0]["digest"]["sha256"] = sha256_file(measurement)
        write_json(record, made)
        assert key() != before
        before = key()


def test_its_ceiling_is_reckoned_as_the_first_ones_was(prompt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = {"gb_per_s": 800.0, "array_bytes": 1 << 30, "cache_bytes": 1 << 22}
    monkeypatch.setattr(bandwidth, "of_gpus", lambda visible: [copied])
    monkeypatch.setattr(bandwidth, "of_cpu", lambda cores: {**copied, "how": "copy"})

    class Reading(MockEngine):
        def streamed(self, subject: Subject) -> Streamed:
            return Streamed(1, 0, 0, 1)

    study = benchmark(prompt, rounds=1)
    for gpus, sheet in ((1, 900), (0, None)):
        chosen = subject("steady", gpus=gpus)
        result = measure_again(Reading(times_ms=(10.0, 5.0)), chosen, study, prompt.with_name("log"), 900)
        assert result.ceiling and result.ceiling.study_gb_per_s == sheet
