"""Quality's main-environment side: the study's words, GGUF weights, llama-perplexity's lost statistics."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy
import pytest
import yaml
from safetensors.numpy import load_file

from reproquant.errors import FormatError, StudyError, ToolError
from reproquant.files import repository, sha256_file, write_json
from reproquant.gguf.dequantize import dequantize
from reproquant.quality import llama_perplexity
from reproquant.study import Study
from reproquant.toolchain.llama_cpp import Build

STATISTICS = """
====== Perplexity statistics ======
Mean PPL(Q)                   :  17.204853 ±   1.030218
Mean PPL(base)                :  16.912345 ±   1.002000

====== KL divergence statistics ======
Mean    KLD:   0.031417 ±   0.001203
Maximum KLD:   1.204512

====== Token probability statistics ======
Same top p: 91.176 ± 0.889 %
"""


def config(**quality: object) -> dict:
    data = yaml.safe_load((repository() / "config.yaml").read_text())
    return {**data, "quality": {**data["quality"], **quality}}


def test_an_artifact_that_the_study_does_not_make_is_refused_with_those_it_does() -> None:
    with pytest.raises(StudyError, match=r"quality\.artifacts\.1") as refused:
        Study.resolve(config(artifacts=["fp8", "Q8_0"]))
    assert "Q4_K_M" in refused.value.remedy
    assert "dynamic" in refused.value.remedy


def test_a_variant_is_the_studys_own_fp8_with_one_setting_changed() -> None:
    study = Study.resolve(config(artifacts=["fp8-autofp8", "fp8-separate", "fp8-dynamic"]))
    changed = {
        name: study.fp8_variant(name) for name in (*study.quality.artifacts, "fp8", "fp8-w8a16", "f16")
    }
    own = study.fp8.model_dump()
    assert {name: fp8 and {k: v for k, v in fp8.model_dump().items() if v != own[k]} for name, fp8 in changed.items()} == {
        "fp8-autofp8": {"activation_scales": "autofp8"},
        "fp8-separate": {"fused_scales": "separate"},
        "fp8-dynamic": {"activation_scheme": "dynamic"},
        "fp8": None, "fp8-w8a16": None, "f16": None,
    }  # fmt: skip


def test_the_statistics_are_read_from_llama_perplexitys_own_lines() -> None:
    assert llama_perplexity.parse(STATISTICS) == {
        "perplexity": 17.204853,
        "kld": 0.031417,
        "same_top_percent": 91.176,
    }


@pytest.mark.parametrize("line", ["Mean PPL(Q)", "Mean    KLD", "Same top p"])
def test_output_without_one_of_the_statistics_counts_as_lost(line: str) -> None:
    assert llama_perplexity.parse(STATISTICS.replace(line, "cut")) is None


def tools(folder: Path, script: str) -> Build:
    """A build whose llama-perplexity is a shell script."""
    program = folder / "llama_cpp/bin/llama-perplexity"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    (folder / "statistics").write_text(STATISTICS)
    facts = {"binaries": {"llama-perplexity": {"sha256": sha256_file(program)}}}
    write_json(folder / "llama_cpp/build.json", facts)
    return Build.load(folder / "llama_cpp/build.json")


def test_llama_perplexity_is_run_again_until_it_has_printed_its_statistics(tmp_path: Path) -> None:
    script = f"cd {tmp_path}; echo run >> runs; test $(wc -l < runs) -lt 3 || cat statistics"
    found = llama_perplexity.measure(
        tmp_path / "x.gguf", tmp_path / "base", tools(tmp_path, script), 1, tmp_path / "log"
    )
    assert found.kld == 0.031417
    assert (tmp_path / "runs").read_text() == "run\n" * 3


def test_statistics_that_never_come_are_an_error_and_no_figure(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="without its final statistics"):
        llama_perplexity.measure(
            tmp_path / "x.gguf", tmp_path / "base", tools(tmp_path, "true"), 1, tmp_path / "log"
        )


def permuted(weights: numpy.ndarray, heads: int) -> numpy.ndarray:
    """What llama.cpp's converter does to q and k of a Llama (conversion/llama.py, ``permute``)."""
    shape = weights.shape
    return weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def write_gguf(path: Path, architecture: str, tensors: dict[str, numpy.ndarray]) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    for name, values in tensors.items():
        if values.dtype == numpy.uint8:
            writer.add_tensor(name, values, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_gguf_comes_back_under_the_checkpoints_names_and_in_its_order(
    architecture: str, tmp_path: Path
) -> None:
    random = numpy.random.default_rng(3)
    query, key = random.normal(size=(64, 32)), random.normal(size=(32, 32))
    stored = (permuted(query, 4), permuted(key, 2)) if architecture == "llama" else (query, key)
    gate = random.normal(size=(48, 32)).astype(numpy.float32)
    tensors = {
        "token_embd.weight": random.normal(size=(10, 32)).astype(numpy.float16),
        "blk.1.attn_q.weight": stored[0].astype(numpy.float32),
        "blk.1.attn_k.weight": stored[1].astype(numpy.float32),
        "blk.1.ffn_gate.weight": gguf.quants.quantize(gate, gguf.GGMLQuantizationType.Q8_0),
        "output_norm.weight": numpy.ones(32, numpy.float32),
    }
    write_gguf(tmp_path / "model.gguf", architecture, tensors)
    (tmp_path / "config.json").write_text('{"model_type": "any"}')
    (target := tmp_path / "out").mkdir()
    dequantize(tmp_path / "model.gguf", tmp_path, target)
    found = {}
    for file in target.glob("*.safetensors"):
        found |= load_file(file)
    prefix = "model.layers.1"
    assert found.keys() == {
        "model.embed_tokens.weight", f"{prefix}.self_attn.q_proj.weight", f"{prefix}.self_attn.k_proj.weight",
        f"{prefix}.mlp.gate_proj.weight", "model.norm.weight",
    }  # fmt: skip
    assert {values.dtype for values in found.values()} == {numpy.dtype(numpy.float32)}
    numpy.testing.assert_array_equal(found[f"{prefix}.self_attn.q_proj.weight"], query.astype(numpy.float32))
    numpy.testing.assert_array_equal(found[f"{prefix}.self_attn.k_proj.weight"], key.astype(numpy.float32))
    error = numpy.abs(found[f"{prefix}.mlp.gate_proj.weight"] - gate).max()
    assert 0 < error < numpy.abs(gate).max() / 100
    assert (target / "config.json").is_file()


def test_a_tensor_without_a_place_in_the_decoder_is_refused_by_name(tmp_path: Path) -> None:
    write_gguf(
        tmp_path / "model.gguf", "llama", {"blk.0.ffn_gate_exps.weight": numpy.ones((4, 32), numpy.float32)}
    )
    with pytest.raises(FormatError, match=r"ffn_gate_exps"):
        dequantize(tmp_path / "model.gguf", tmp_path, tmp_path)
