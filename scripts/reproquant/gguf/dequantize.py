"""A GGUF's weights as a float32 checkpoint: what its quantization left of them."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from pathlib import Path

import numpy
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize as dequantize_blocks
from safetensors.numpy import save_file

from reproquant.errors import FormatError
from reproquant.gguf.header import Header

OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROTATED = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
"""Whose rows llama.cpp's converter reorders for the architecture llama, and how many heads they have."""


def dequantize(gguf: Path, model: Path, target: Path) -> None:
    """Write the weights of a Llama or Qwen2 GGUF into the folder ``target``, under their Hugging Face names.

    One safetensors file for each layer and for each tensor outside of them, so that no more than that is in
    memory; config.json comes from ``model``, the checkpoint that the GGUF was made from. Raises FormatError
    for a tensor that has no place in such a decoder, or whose type can't be dequantized.
    """
    reader = Header(gguf)
    shards: dict[str, list[ReaderTensor]] = defaultdict(list)
    for tensor in reader.tensors:
        shards[tensor.name.split(".")[1] if tensor.name.startswith("blk.") else tensor.name].append(tensor)
    for shard, tensors in shards.items():
        arrays = {_name(tensor.name, gguf): _values(tensor, reader, gguf) for tensor in tensors}
        save_file(arrays, target / f"model-{shard}.safetensors", metadata={"format": "pt"})
    shutil.copyfile(model / "config.json", target / "config.json")


def _name(name: str, where: Path) -> str:
    if name in OUTSIDE:
        return OUTSIDE[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if not match or match[2] not in PARTS:
        raise FormatError(
            where,
            f"its tensor {name} has no place in a dense Llama or Qwen2 decoder",
            "leave it out of quality",
        )
    return f"model.layers.{match[1]}.{PARTS[match[2]]}.{match[3]}"


def _values(tensor: ReaderTensor, reader: GGUFReader, where: Path) -> numpy.ndarray:
    """The tensor in float32, its rows in the checkpoint's order."""
    try:
        values = dequantize_blocks(tensor.data, tensor.tensor_type).astype(numpy.float32)
    except NotImplementedError as error:
        raise FormatError(
            where, f"{tensor.tensor_type.name} can't be dequantized: {error}", "leave it out of quality"
        ) from error
    part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
    if part in ROTATED and _field(reader, "general.architecture") == "llama":
        return _halves_apart(values, heads=_field(reader, f"llama.{ROTATED[part]}"))
    return numpy.ascontiguousarray(values)


def _halves_apart(values: numpy.ndarray, heads: int) -> numpy.ndarray:
    """Undo the converter's ``permute``: within a head, pairs next to each other go half a head apart."""
    size = len(values) // heads
    pairs = values.reshape(heads, size // 2, 2, *values.shape[1:])
    return numpy.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _field(reader: GGUFReader, key: str):  # type: ignore[no-untyped-def]
    field = reader.get_field(key)
    return field.contents() if field else None
