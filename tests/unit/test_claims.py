"""The article's claims are judged by the study's own figures, or it is said why not. Figures are SYNTHETIC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from report_fixture import REFUSAL, make_results
from reproquant import report
from reproquant.errors import StudyError
from reproquant.files import read_json, repository, write_json
from reproquant.report.artifacts import artifacts
from reproquant.report.claims import Claim, Judged, publish, read_claims
from reproquant.report.numbers import Numbers
from reproquant.report.subjects import read_subjects
from reproquant.study import Study

ARTICLE = repository() / "workflow/claims/v100-article.yaml"
V100 = "Tesla V100-SXM2-32GB"
Q4, F16, FP8 = (
    {"subject": {"name": name}, "metric": "decode_tok_per_s", "concurrency": 1}
    for name in ("llama-q4km", "llama-f16", "vllm-fp8")
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The fixture's results as if they had come from the article's machine and model."""
    results = make_results(tmp_path)
    study = read_json(results / "study.json")
    study["machine"] = {"gpus": 2, "gpu": V100, "bandwidth_gb_per_s": 900}
    study["model"]["name"] = "Qwen2.5-7B-Instruct"
    write_json(results / "study.json", study)
    for path in (results / "bench").glob("*[!vy].json"):
        write_json(path, read_json(path) | {"hardware": "gpu", "machine": {"gpus": [{"name": V100}] * 2}})
    return results


def judge(results: Path, claim: dict[str, Any]) -> Judged:
    head = {"source": "a test", "gpu": V100, "model": "Qwen2.5-7B-Instruct", "tolerance": 0.1}
    whole = {"id": "x", "says": "Something.", "depends_on": ["gpu", "model"], **claim}
    write_json(results / "report/claims.json", {**head, "claims": [whole]})
    numbers, study = Numbers(results), Study.load(results / "study.json")
    section = read_claims(numbers, study, read_subjects(numbers, study), artifacts(numbers, study))
    return (*section.judged, *section.others)[0]


def words(judged: Judged) -> str:
    return "".join(
        part if isinstance(part, str) else getattr(part, "text", "#") for part in judged.finding.why
    )


@pytest.mark.parametrize(
    "claim, verdict",
    [
        ({"of": Q4, "about": 190}, "reproduced"),
        ({"of": Q4, "about": 62}, "contradicted"),
        ({"of": Q4, "above": 140}, "reproduced"),
        ({"of": Q4, "above": 240}, "contradicted"),
        ({"of": {"artifact": "Q4_K_M", "property": "bits_per_weight"}, "between": [4.5, 4.8]}, "contradicted"),
        ({"of": {"artifact": "Q4_K_M", "property": "bits_per_weight"}, "between": [5, 5.5]}, "reproduced"),
        ({"of": {"artifact": "Q4_K_M", "property": "file_bytes"}, "about": 120e6}, "reproduced"),
        ({"of": {"artifact": "f16", "property": "ceiling"}, "about": 900e9 / 384e6}, "reproduced"),
        ({"of": {**F16, "metric": "part_of_ceiling"}, "about": 88 * 384e6 / 900e9}, "reproduced"),
        ({"of": Q4, "beats": {"name": "llama-f16"}}, "reproduced"),
        ({"of": F16, "beats": {"name": "llama-q4km"}}, "contradicted"),
        ({"of": Q4, "beats": {"engine": "llama_cpp", "artifact": "Q4_K_M"}}, "undecided"),
        ({"refused": {"artifact": "fp8"}}, "reproduced"),
        ({"refused": {"artifact": "f16"}}, "contradicted"),
        ({"refused": {"artifact": "fp8", "emulated": True}}, "not measured"),
        ({"of": FP8, "about": 8}, "not measured"),
        ({"of": Q4, "beats": {"name": "vllm-gptq-int4"}}, "not measured"),
        ({"of": {**Q4, "concurrency": 16}, "about": 8}, "not measured"),
        ({"of": {"artifact": "Q8_0", "property": "file_bytes"}, "about": 8}, "not measured"),
        ({"elsewhere": "somewhere else"}, "not measured"),
    ],
)  # fmt: skip
def test_a_claim_gets_its_verdict(results: Path, claim: dict[str, Any], verdict: str) -> None:
    judged = judge(results, claim)
    assert judged.finding.verdict == verdict, words(judged)
    assert judged.finding.why


def test_a_contradiction_says_by_how_much(results: Path) -> None:
    judged = judge(results, {"of": Q4, "about": 62, "unit": "tok/s"})
    (found,) = judged.finding.found
    deviation = judged.finding.why[0]
    assert found.id == "llama-q4km.c1.decode_tok_per_s.median"
    assert deviation.value == pytest.approx(100 * (found.value / 62 - 1))  # type: ignore[union-attr]
    assert judged.expected[0].origin.path == "report/claims.json"  # type: ignore[union-attr]


def test_a_refusal_is_quoted(results: Path) -> None:
    assert REFUSAL in words(judge(results, {"refused": {"artifact": "fp8"}}))


def test_a_subject_that_isnt_trusted_reproduces_nothing(results: Path) -> None:
    path = results / "bench/llama-q4km.json"
    write_json(path, read_json(path) | {"status": "rejected", "reasons": ["a cache hit"]})
    judged = judge(results, {"of": Q4, "about": 190})
    assert (judged.finding.verdict, words(judged)) == ("not measured", "llama-q4km is rejected")


def test_another_gpu_or_model_makes_a_claim_not_applicable(results: Path) -> None:
    study = read_json(results / "study.json")
    study["model"]["name"] = "Qwen2.5-0.5B"
    write_json(results / "study.json", study)
    judged = judge(results, {"of": Q4, "about": 190})
    assert judged.finding.verdict == "not applicable"
    assert words(judged) == "it is about Qwen2.5-7B-Instruct, and this is Qwen2.5-0.5B"
    assert judge(results, {"of": Q4, "about": 190, "depends_on": ["gpu"]}).finding.verdict == "reproduced"
    for path in (results / "bench").glob("*[!vy].json"):
        write_json(path, read_json(path) | {"machine": {"gpus": [{"name": "NVIDIA H200"}]}})
    assert "this ran on NVIDIA H200" in words(judge(results, {"of": Q4, "about": 190}))


def test_on_a_cpu_nearly_no_claim_is_applicable_and_the_report_says_so(tmp_path: Path) -> None:
    results = make_results(tmp_path)
    report.build(results, results / "report")
    claims = read_json(results / "report/report.json")["claims"]
    verdicts = [claim["verdict"] for claim in claims]
    assert len(claims) == len({claim["id"] for claim in claims}) >= 20
    assert set(verdicts) == {"not applicable", "not measured"}
    assert verdicts.count("not applicable") >= 20
    for name in ("index.html", "report.md"):
        text = (results / "report" / name).read_text()
        assert "it is about the Tesla V100-SXM2-32GB, and this ran on a CPU" in text
        assert "Claims of the article" in text
    assert "None of them could be judged here." in (results / "report/index.html").read_text()


def test_on_the_articles_machine_the_report_shows_what_was_judged(results: Path) -> None:
    report.build(results, results / "report")
    page = (results / "report/index.html").read_text()
    assert 'href="#number:claim.bpw-q4km.deviation"' in page
    assert 'href="#number:claim.size-f16.about"' in page
    rows = {claim["id"]: claim for claim in read_json(results / "report/report.json")["claims"]}
    assert rows["fp8-rejected"]["verdict"] == "reproduced"
    assert rows["bpw-q4km"]["verdict"] == "contradicted"


def test_the_articles_claims_are_valid_and_say_no_figure_in_words() -> None:
    for claim in yaml.safe_load(ARTICLE.read_text())["claims"]:
        assert Claim.model_validate(claim).depends_on
        assert not any(figure in claim["says"] for figure in ("tok/s", "GB", "%"))


@pytest.mark.parametrize(
    "change", [{"about": 1}, {"of": None}, {"beats": None}, {"wrong": 1}, {"beats": {"artefact": "f16"}}]
)
def test_a_claim_that_says_two_things_or_none_or_names_no_key_is_refused(change: dict[str, Any]) -> None:
    good = {"id": "x", "says": "Something.", "of": Q4, "beats": {"name": "y"}, "depends_on": ["gpu"]}
    with pytest.raises(ValidationError):
        Claim.model_validate(good | change)


def test_a_file_that_holds_no_claims_is_refused_with_the_key(tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text("source: x\n")
    with pytest.raises(StudyError, match="tolerance"):
        publish(tmp_path / "claims.yaml", tmp_path / "claims.json")


def test_the_articles_forced_fp8_is_judged_by_the_emulated_subject(results: Path) -> None:
    """The emulation's figures aren't ranked, and still are what the article measured."""
    write_json(
        results / "bench/vllm-fp8-emulated.json",
        read_json(results / "bench/vllm-bf16.json") | {"subject": "vllm-fp8-emulated", "emulated": True},
    )
    study = read_json(results / "study.json")
    study["subjects"].append(
        {"name": "vllm-fp8-emulated", "engine": "vllm", "artifact": "fp8", "emulated": True}
    )
    write_json(results / "study.json", study)
    claims = {claim["id"]: claim for claim in yaml.safe_load(ARTICLE.read_text())["claims"]}
    assert judge(results, claims["fp8-rejected"]).finding.verdict == "reproduced"
    assert judge(results, claims["fp8-forced-decode"]).finding.verdict == "contradicted"
    assert judge(results, claims["fp8-forced-prefill"]).finding.found[0].id.startswith("vllm-fp8-emulated.c1")
