"""Bytes read for each token, from real headers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from reproquant.engines.streamed import Streamed, of_checkpoint, of_gguf, option
from reproquant.errors import FormatError

SEVEN_B = {
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}


def seven_b(linear: str) -> dict[str, tuple[str, list[int]]]:
    """Qwen2.5-7B's tensors, the linear layers in type ``linear``, with scales if that is FP8."""
    hidden, wide, kv = 3584, 18944, 512
    found: dict[str, tuple[str, list[int]]] = {
        "model.embed_tokens.weight": ("BF16", [152064, hidden]),
        "lm_head.weight": ("BF16", [152064, hidden]),
        "model.norm.weight": ("BF16", [hidden]),
    }
    shapes = {
        "self_attn.q_proj": [hidden, hidden], "self_attn.k_proj": [kv, hidden], "self_attn.v_proj": [kv, hidden],
        "self_attn.o_proj": [hidden, hidden], "mlp.gate_proj": [wide, hidden], "mlp.up_proj": [wide, hidden],
        "mlp.down_proj": [hidden, wide],
    }  # fmt: skip
    for layer in range(28):
        prefix = f"model.layers.{layer}"
        for name, shape in shapes.items():
            found[f"{prefix}.{name}.weight"] = (linear, shape)
            if name[-6] in "qkv" and "attn" in name and name[10] != "o":
                found[f"{prefix}.{name}.bias"] = ("BF16", shape[:1])
            if linear.startswith("F8"):
                found[f"{prefix}.{name}.weight_scale"] = ("F32", [])
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}.{name}.weight"] = ("BF16", [hidden])
    return found


def checkpoint(folder: Path, tensors: dict[str, tuple[str, list[int]]], config: dict[str, Any]) -> Path:
    """A folder with config.json and a safetensors header that no data follows: only headers are read."""
    header = {name: {"dtype": type, "shape": shape} for name, (type, shape) in tensors.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("linear", "streamed_gb"), [("BF16", 14.14), ("F8_E4M3", 7.62)])
def test_the_seven_billion_model_streams_what_is_known_of_it(
    linear: str, streamed_gb: float, tmp_path: Path
) -> None:
    """14.14 and 7.62 GB a token: all weights without the input embedding, and 57,344 B for each of 576 tokens."""
    found = of_checkpoint(checkpoint(tmp_path, seven_b(linear), SEVEN_B), 2, 1)
    assert found.kv_per_token == 57_344
    assert found.unread == 152064 * 3584 * 2
    assert (found.weights + 576 * found.kv_per_token) / 1e9 == pytest.approx(streamed_gb, abs=0.05)


def test_a_tied_embedding_is_read_as_the_output_and_read_once(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": ("F32", [100, 8]), "model.norm.weight": ("F16", [8])}
    shape = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2}
    assert of_checkpoint(checkpoint(tmp_path, tensors, shape), 1, 2) == Streamed(1616, 0, 2 * 2 * 2 * 4, 2)
    tensors["lm_head.weight"] = ("F32", [100, 8])
    twice = {**shape, "tie_word_embeddings": True, "head_dim": 16}
    assert of_checkpoint(checkpoint(tmp_path, tensors, twice), 2, 1) == Streamed(1616, 1600, 256, 1)


@pytest.mark.parametrize("damage", ["no shape", "no header", "a new type"])
def test_a_checkpoint_that_tells_nothing_is_refused(damage: str, tmp_path: Path) -> None:
    kind = "F6_E3M2" if damage == "a new type" else "F16"
    checkpoint(tmp_path, {"a": (kind, [4])}, {} if damage == "no shape" else SEVEN_B)
    if damage == "no header":
        (tmp_path / "model.safetensors").write_bytes(b"\0\0")
    with pytest.raises(FormatError):
        of_checkpoint(tmp_path, 2, 1)


def write_gguf(path: Path, tied: bool) -> Path:
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(3)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    matrix = np.ones((32, 64), dtype=np.float16)
    writer.add_tensor("token_embd.weight", matrix)
    writer.add_tensor("blk.0.attn_q.weight", gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
    if not tied:
        writer.add_tensor("output.weight", matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_ggufs_bytes_are_those_of_its_quantized_tensors(tmp_path: Path) -> None:
    matrix, quantized = 32 * 64 * 2, 32 * 64 // 32 * 34
    untied = of_gguf(write_gguf(tmp_path / "a", tied=False), ("f16", "f16"), 1)
    assert untied == Streamed(matrix + quantized, matrix, 3 * 2 * 2 * 16 * 2, 1)
    tied = of_gguf(write_gguf(tmp_path / "b", tied=True), ("q8_0", "q4_0"), 2)
    assert tied == Streamed(matrix + quantized, 0, 3 * 2 * 16 * (34 + 18) / 32, 2)


def test_an_unknown_type_of_cache_and_a_file_that_is_no_gguf_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="q9"):
        of_gguf(write_gguf(tmp_path / "a", tied=False), ("q9", "f16"), 1)
    (tmp_path / "b").write_bytes(b"nothing")
    with pytest.raises(FormatError):
        of_gguf(tmp_path / "b", ("f16", "f16"), 1)


def test_the_last_value_of_an_option_counts_in_both_spellings() -> None:
    names = ("-ctk", "--cache-type-k")
    assert option(("-b", "9"), names, "f16") == "f16"
    assert option(("-ctk", "q8_0", "-b", "9"), names, "f16") == "q8_0"
    assert option(("-ctk", "q8_0", "--cache-type-k=q4_0"), names, "f16") == "q4_0"
