"""GGUF files: what is promised of their tensors, and how the tools that write them are run.

The files here are small real GGUFs with zeros for weights. The converter and
the quantizer are stand-ins; the real ones run in tests/end_to_end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy
import pytest
from gguf import GGMLQuantizationType, LlamaFileType

from reproquant.errors import FormatError, ToolError
from reproquant.gguf import convert as convert_module
from reproquant.gguf.convert import convert
from reproquant.gguf.inspect import NO_PROMISE, inspect, require_type
from reproquant.gguf.quantize import quantize
from reproquant.model.manifest import Manifest, write
from reproquant.toolchain.llama_cpp import SourceTree
from reproquant.toolchain.python_env import PythonEnv

LAYERS = 16
# use_more_bits for 16 layers, by hand: the first two, the last two, and 4, 7, 10, 13 between.
CHOSEN = (0, 1, 4, 7, 10, 13, 14, 15)


def write_gguf(
    path: Path,
    file_type: LlamaFileType,
    type_of: Callable[[str], str],
    tied: bool = True,
    architecture: str = "llama",
    experts: int = 0,
) -> Path:
    """A decoder of one 256 x 256 matrix of each kind and layer, its types given by name."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_file_type(file_type)
    if experts:
        writer.add_expert_count(experts)
    names = ["token_embd.weight"] + ([] if tied else ["output.weight"])
    for layer in range(LAYERS):
        names += [f"blk.{layer}.{kind}.weight" for kind in ("attn_q", "attn_v", "ffn_down")]
    for name in names:
        kind = GGMLQuantizationType[type_of(name)]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        zeros = numpy.zeros((256, 256 // block * size), dtype=numpy.uint8)
        writer.add_tensor(name, zeros, raw_dtype=kind)
    writer.add_tensor("output_norm.weight", numpy.zeros(256, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def q4_k_m(name: str, output: str = "token_embd.weight") -> str:
    """The rule in its own words: Q6_K for the output, and for attn_v and ffn_down of the chosen layers."""
    if name == output:
        return "Q6_K"
    parts = name.split(".")
    return "Q6_K" if parts[2:3] in (["attn_v"], ["ffn_down"]) and int(parts[1]) in CHOSEN else "Q4_K"


def test_a_q4_k_m_with_tied_embeddings_is_as_promised(tmp_path: Path) -> None:
    facts = inspect(write_gguf(tmp_path / "m.gguf", LlamaFileType.MOSTLY_Q4_K_M, q4_k_m), "Q4_K_M")
    assert facts["as_promised"] is True and facts["fallbacks"] == []
    assert {kind: entry["count"] for kind, entry in facts["tensors"].items()} == {
        "Q6_K": 17,
        "Q4_K": 32,
        "F32": 1,
    }
    assert (facts["name"], facts["architecture"], facts["file_type"]) == ("tiny", "llama", "Q4_K_M")


def test_an_untied_model_owes_q6_k_to_its_output_and_not_to_its_embedding(tmp_path: Path) -> None:
    def types(name: str) -> str:
        return q4_k_m(name, output="output.weight")

    facts = inspect(write_gguf(tmp_path / "m.gguf", LlamaFileType.MOSTLY_Q4_K_M, types, tied=False), "Q4_K_M")
    assert facts["as_promised"] is True


def test_bits_per_weight_counts_the_bytes_of_all_tensors(tmp_path: Path) -> None:
    facts = inspect(write_gguf(tmp_path / "m.gguf", LlamaFileType.MOSTLY_Q8_0, lambda name: "Q8_0"), "Q8_0")
    matrices, vector = 49 * 256 * 256, 256
    assert facts["parameters"] == matrices + vector
    assert facts["tensor_bytes"] == matrices * 34 // 32 + vector * 4
    assert facts["bits_per_weight"] == pytest.approx(8.5, rel=1e-3)
    assert facts["file_bytes"] == (tmp_path / "m.gguf").stat().st_size


def test_a_tensor_that_fell_back_is_listed_with_promised_and_found_type(tmp_path: Path) -> None:
    def types(name: str) -> str:
        return "Q5_0" if name == "blk.3.attn_q.weight" else q4_k_m(name)

    facts = inspect(write_gguf(tmp_path / "m.gguf", LlamaFileType.MOSTLY_Q4_K_M, types), "Q4_K_M")
    assert facts["as_promised"] is False
    assert facts["fallbacks"] == [{"tensor": "blk.3.attn_q.weight", "promised": "Q4_K", "found": "Q5_0"}]


def test_a_q4_k_m_without_its_larger_layers_is_not_as_promised(tmp_path: Path) -> None:
    facts = inspect(
        write_gguf(tmp_path / "m.gguf", LlamaFileType.MOSTLY_Q4_K_M, lambda name: "Q4_K"), "Q4_K_M"
    )
    missed = {entry["tensor"] for entry in facts["fallbacks"]}
    layers = {f"blk.{layer}.{kind}.weight" for layer in CHOSEN for kind in ("attn_v", "ffn_down")}
    assert missed == layers | {"token_embd.weight"}


def test_a_q4_0_keeps_its_output_in_q6_k(tmp_path: Path) -> None:
    def types(name: str) -> str:
        return "Q6_K" if name == "token_embd.weight" else "Q4_0"

    assert (
        inspect(write_gguf(tmp_path / "m.gguf", LlamaFileType.MOSTLY_Q4_0, types), "Q4_0")["as_promised"]
        is True
    )


def test_an_f16_has_half_precision_matrices_and_f32_vectors(tmp_path: Path) -> None:
    facts = inspect(write_gguf(tmp_path / "m.gguf", LlamaFileType.MOSTLY_F16, lambda name: "F16"), "f16")
    assert facts["as_promised"] is True and facts["file_type"] == "F16"


@pytest.mark.parametrize(
    ("type", "other"), [("IQ4_XS", {}), ("Q4_K_M", {"architecture": "falcon"}), ("Q4_K_M", {"experts": 8})]
)
def test_where_no_rule_is_known_nothing_is_promised(tmp_path: Path, type: str, other: dict[str, Any]) -> None:
    path = write_gguf(tmp_path / "m.gguf", LlamaFileType[f"MOSTLY_{type}"], q4_k_m, **other)
    facts = inspect(path, type)
    assert facts["as_promised"] == NO_PROMISE and facts["fallbacks"] == []


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"something else entirely")
    with pytest.raises(FormatError, match="no whole GGUF"):
        inspect(tmp_path / "m.gguf", "Q4_K_M")


@pytest.mark.parametrize("kept", [0, 3, 40, 5000, -1000])
def test_a_gguf_that_was_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", LlamaFileType.MOSTLY_Q4_K_M, q4_k_m)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FormatError, match="no whole GGUF"):
        require_type(path, "Q4_K_M")


def test_a_gguf_of_another_type_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", LlamaFileType.MOSTLY_Q4_0, lambda name: "Q4_0")
    with pytest.raises(FormatError, match="says Q4_0, and Q4_K_M was asked for"):
        require_type(path, "Q4_K_M")


def environment(tmp_path: Path) -> PythonEnv:
    """An environment whose Python is this one."""
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return PythonEnv("converter", tmp_path / "environment", "0" * 64)


def converter_source(tmp_path: Path, script: str) -> SourceTree:
    """A source tree that holds a stand-in for the converter."""
    root = tmp_path / "llama.cpp"
    root.mkdir()
    (root / "convert_hf_to_gguf.py").write_text(script)
    return SourceTree(root, {})


def checkpoint(folder: Path) -> Manifest:
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "README.md"):
        (folder / name).write_text(name)
    write(
        folder, folder.parent / "manifest.json", "tiny-model", {"kind": "local", "licence": "MIT", "note": ""}
    )
    return Manifest.load(folder.parent / "manifest.json")


def test_the_converter_sees_a_directory_named_after_the_model_without_its_card(tmp_path: Path) -> None:
    script = "import os, sys; print('saw', os.path.basename(sys.argv[1]), sorted(os.listdir(sys.argv[1])))"
    source = converter_source(tmp_path, script)
    manifest = checkpoint(tmp_path / "any" / "name")
    with pytest.raises(FormatError):
        convert(manifest, source, environment(tmp_path), tmp_path / "f16.gguf", tmp_path / "log")
    assert "saw tiny-model ['config.json', 'model.safetensors']" in (tmp_path / "log").read_text()
    assert not list(tmp_path.glob(".convert-*"))


def test_what_the_converter_says_last_is_in_the_error(tmp_path: Path) -> None:
    source = converter_source(tmp_path, "raise NotImplementedError('BPE pre-tokenizer was not recognized')")
    manifest = checkpoint(tmp_path / "model")
    with pytest.raises(ToolError, match="BPE pre-tokenizer was not recognized"):
        convert(manifest, source, environment(tmp_path), tmp_path / "f16.gguf", tmp_path / "log")


def test_a_manifest_that_names_a_path_outside_of_its_checkpoint_is_refused(tmp_path: Path) -> None:
    manifest = SimpleNamespace(directory=tmp_path, files=[SimpleNamespace(path="../../evil")])
    with pytest.raises(FormatError, match="outside"):
        convert_module._link(manifest, tmp_path / "links")  # type: ignore[arg-type]


def quantizer(tmp_path: Path, script: str) -> Any:
    """Stands in for a build whose llama-quantize is a shell script."""
    path = tmp_path / "llama-quantize"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return SimpleNamespace(binary=lambda name: tmp_path / name)


def test_what_the_quantizer_says_last_is_in_the_error(tmp_path: Path) -> None:
    f16 = write_gguf(tmp_path / "f16.gguf", LlamaFileType.MOSTLY_F16, lambda name: "F16")
    tools = quantizer(tmp_path, "echo 'failed to quantize: no space left'; exit 1")
    with pytest.raises(ToolError, match="failed to quantize: no space left"):
        quantize(f16, tmp_path / "q.gguf", "Q4_K_M", tools, 1, tmp_path / "log")


def test_a_quantizer_that_leaves_another_type_is_a_format_error(tmp_path: Path) -> None:
    f16 = write_gguf(tmp_path / "f16.gguf", LlamaFileType.MOSTLY_F16, lambda name: "F16")
    with pytest.raises(FormatError, match="says F16, and Q4_K_M was asked for"):
        quantize(f16, tmp_path / "q.gguf", "Q4_K_M", quantizer(tmp_path, 'cp "$1" "$2"'), 1, tmp_path / "log")


def test_only_an_f16_is_quantized(tmp_path: Path) -> None:
    q4 = write_gguf(tmp_path / "q4.gguf", LlamaFileType.MOSTLY_Q4_0, lambda name: "Q4_0")
    with pytest.raises(FormatError, match="says Q4_0, and F16 was asked for"):
        quantize(q4, tmp_path / "q.gguf", "Q4_K_M", quantizer(tmp_path, "exit 0"), 1, tmp_path / "log")
