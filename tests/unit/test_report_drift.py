"""What the report makes of the baseline's second measurement and of servers that tokenize differently."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from report_fixture import make_results
from reproquant import report
from reproquant.files import read_json, sha256_file, write_json

AGAIN = "bench/again/llama-f16.json"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return make_results(tmp_path)


def change(path: Path, edit: Callable[[Any], object]) -> None:
    data = read_json(path)
    edit(data)
    write_json(path, data)


def slower(by: float) -> Callable[[Any], None]:
    def edit(measurement: Any) -> None:
        decode = measurement["levels"][0]["decode_tok_per_s"]
        decode.update({key: decode[key] * (1 - by) for key in ("median", "min", "max")})

    return edit


def moved(path: Path, started: str, finished: str) -> None:
    """A measurement's record with other times."""
    times = {"startedOn": started, "finishedOn": finished}
    change(path, lambda record: record["predicate"]["runDetails"].update(metadata=times))


def built(results: Path) -> tuple[dict[str, Any], str]:
    """report.json and report.md."""
    target = results.parent / "report"
    report.build(results, target)
    return read_json(target / "report.json"), (target / "report.md").read_text()


def subjects(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {subject["name"]: subject for subject in data["subjects"]}


def row(text: str) -> list[str]:
    found = re.search(r"^\| 1 at once \|(.+)\|$", text[text.index("## Drift") :], re.MULTILINE)
    assert found
    return [cell.strip() for cell in found[1].split("|")]


def test_a_baseline_that_stayed_is_shown_with_both_figures_and_doubts_nobody(results: Path) -> None:
    data, text = built(results)
    values = {number["id"]: number["value"] for number in data["numbers"]}
    assert data["drift"]["verdict"] == "ok" and data["drift"]["doubt"] is None
    assert values[data["drift"]["first"]] == values[data["drift"]["again"]]
    first, again, difference, limit, verdict = row(text)
    assert (first, difference, limit, verdict) == (again, "0 %", "2 %", "ok")
    assert "In between: llama-q4km, vllm-bf16." in text
    assert not any(subject["doubts"] for subject in data["subjects"])


@pytest.mark.parametrize(("by", "verdict"), [(0.019, "ok"), (0.03, "flagged"), (-0.03, "flagged")])
def test_a_baseline_that_moved_beyond_the_limit_flags_what_was_measured_in_between(
    by: float, verdict: str, results: Path
) -> None:
    before = {path: sha256_file(path) for path in (results / "bench").glob("*.json")}
    change(results / AGAIN, slower(by))
    data, text = built(results)
    found = subjects(data)
    status = "flagged" if verdict == "flagged" else "ok"
    assert row(text)[-1] == data["drift"]["verdict"] == verdict
    assert [found[name]["status"] for name in ("llama-f16", "llama-q4km")] == [status, status]
    assert found["vllm-fp8"]["status"] == "unsupported" and not found["vllm-fp8"]["doubts"]
    doubted = {name for name, subject in found.items() if subject["doubts"]}
    assert doubted == ({"llama-f16", "llama-q4km", "vllm-bf16"} if verdict == "flagged" else set())
    if doubted:
        sentence = text[text.index("### llama-q4km: flagged") :]
        assert f"{-100 * by:.2f} %; 2 % is steady. So the machine did not stay the same" in sentence
    assert {path: sha256_file(path) for path in before} == before


def test_a_flag_of_the_report_is_called_a_flag_in_the_answer(results: Path) -> None:
    change(results / AGAIN, slower(0.03))
    assert "tok/s, flagged)" in built(results)[1]


def test_of_subjects_measured_at_another_time_the_sentinel_says_nothing(results: Path) -> None:
    """The baseline was measured again on purpose, after llama-q4km and before vllm-bf16."""
    moved(results / "bench/llama-f16.json.prov.json", "2026-01-01T01:00:00Z", "2026-01-01T01:05:00Z")
    moved(results / "bench/vllm-bf16.json.prov.json", "2026-01-01T01:05:00Z", "2026-01-01T01:10:00Z")
    moved(results / f"{AGAIN}.prov.json", "2026-01-01T01:10:00Z", "2026-01-01T01:11:00Z")
    change(results / AGAIN, slower(0.03))
    data, text = built(results)
    assert data["drift"]["between"] == ["llama-f16", "vllm-bf16"]
    assert "In between: vllm-bf16. Measured at other times, so it says nothing of them: llama-q4km." in text
    assert "began at 2026-01-01T01:00:00Z, the second at 2026-01-01T01:10:00Z" in text
    assert subjects(data)["llama-q4km"]["status"] == "ok"


def test_a_measurement_out_of_the_store_counts_for_when_it_was_really_made(results: Path) -> None:
    made = {"started": "2025-12-01T00:00:00Z", "finished": "2025-12-01T00:05:00Z"}

    def answered(record: Any) -> None:
        definition = record["predicate"]["buildDefinition"]
        definition["internalParameters"]["stored"] = {"key": "0" * 64, "answered": True, "made": made}

    change(results / "bench/llama-q4km.json.prov.json", answered)
    assert built(results)[0]["drift"]["between"] == ["llama-f16", "vllm-bf16"]


@pytest.mark.parametrize("status", ["failed", "rejected", "unstable", "unsupported"])
def test_a_baseline_that_could_not_be_measured_again_leaves_a_doubt_that_says_so(
    status: str, results: Path
) -> None:
    change(
        results / AGAIN, lambda m: m.update(status=status, reasons=["the card fell off the bus"], levels=[])
    )
    data, text = built(results)
    assert row(text)[1:] == ["–", "–", "2 %", "unknown"]
    assert "The second time: the card fell off the bus" in text
    found = subjects(data)["llama-q4km"]
    assert found["status"] == "flagged"
    assert f"The baseline, llama-f16, was {status} when it was measured again" in text
    assert "nothing tells whether the machine stayed the same" in text


def test_a_baseline_that_was_unstable_at_first_is_said_to_have_nothing_to_be_compared_with(
    results: Path,
) -> None:
    change(results / "bench/llama-f16.json", lambda m: m.update(status="unstable", reasons=["it swings"]))
    data, text = built(results)
    assert data["drift"]["verdict"] == "unknown" and row(text)[0] == "–"
    assert "The baseline was unstable the first time, so the second has nothing to be compared" in text


@pytest.mark.parametrize("status", ["rejected", "unsupported"])
def test_a_baseline_without_figures_of_its_own_has_nothing_to_compare_and_doubts_nobody(
    status: str, results: Path
) -> None:
    for path in ("bench/llama-f16.json", AGAIN):
        change(results / path, lambda m: m.update(status=status, reasons=["a reason"], levels=[]))
    data, text = built(results)
    assert row(text) == ["–", "–", "–", "2 %", "unknown"]
    assert subjects(data)["llama-q4km"]["status"] == "ok"
    assert not any(subject["doubts"] for subject in data["subjects"])


def test_servers_that_agree_on_the_prompts_tokens_are_told_with_the_digest(results: Path) -> None:
    digest = read_json(results / "bench/llama-f16.json")["workload"]["ids_sha256"]
    assert f"All servers made the same token ids of the prompt's text, sha256 {digest}." in built(results)[1]


def test_servers_that_disagree_on_the_prompts_tokens_are_flagged_with_both_digests(results: Path) -> None:
    own, other = read_json(results / "bench/llama-f16.json")["workload"]["ids_sha256"], "0" * 64
    change(results / "bench/vllm-bf16.json", lambda m: m["workload"].update(ids_sha256=other))
    data, text = built(results)
    found = subjects(data)
    assert [found[name]["status"] for name in ("llama-f16", "llama-q4km", "vllm-bf16")] == ["flagged"] * 3
    assert f"Of the prompt's text its server made token ids with sha256 {own}, and that of vllm-bf16" in text
    assert f"ids with sha256 {other}: they were not given the same work." in text
    assert f"made token ids with sha256 {other}, and that of llama" in text
    assert "All servers made the same" not in text
