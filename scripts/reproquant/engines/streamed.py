"""How many bytes an engine reads out of memory for each token that it decodes, from the files' headers."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from reproquant.errors import FormatError
from reproquant.files import read_json
from reproquant.gguf.header import Header

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
HELD_IN_HALVES = frozenset(("F64", "F32", "F16", "BF16"))
ELEMENT_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
    "I32": 4,
}
CACHE_BYTES = {
    "f32": 4, "f16": 2, "bf16": 2, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32,
    "q4_0": 18 / 32,
}  # fmt: skip
"""Bytes of an element of llama.cpp's KV cache: ggml-common.h's blocks of 32."""


@dataclass(frozen=True)
class Streamed:
    """Bytes for each decoded token.

    ``unread`` are weights that aren't read whole: of an input embedding that
    isn't the output matrix as well, a token takes one row. ``kv_per_token`` is
    what each token of context adds. ``memories`` are read at the same time.
    """

    weights: int
    unread: int
    kv_per_token: float
    memories: int


def of_checkpoint(folder: Path, cache_bytes: float, memories: int) -> Streamed:
    """A safetensors checkpoint as vLLM holds it: integers and 8-bit weights as they are, others in two bytes.

    ``cache_bytes`` is the size of one element of the KV cache. Raises FormatError
    if a header or config.json can't be read.
    """
    sizes: dict[str, int] = {}
    for file in sorted(folder.glob("*.safetensors")):
        sizes |= {name: _held_bytes(entry, file) for name, entry in _header(file).items()}
    try:
        config = read_json(folder / "config.json")
        heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
        kv_heads = config.get("num_key_value_heads") or heads
        width = config.get("head_dim") or config["hidden_size"] // heads
    except (OSError, ValueError, KeyError) as error:
        raise FormatError(folder / "config.json", f"it tells no shape: {error}", "restore it") from error
    tied = config.get("tie_word_embeddings", True)
    unread = sizes.get(OUTPUT, 0) if tied else sizes.get(EMBEDDING, 0)
    kv = 2 * layers * kv_heads * width * cache_bytes
    return Streamed(sum(sizes.values()) - unread, unread, kv, memories)


def of_gguf(path: Path, cache_types: tuple[str, str], memories: int) -> Streamed:
    """A GGUF as llama.cpp holds it; ``cache_types`` are those of the keys and the values.

    Raises FormatError if the file is no GGUF with a shape, or a type isn't known.
    """
    try:
        reader = Header(path)
        sizes = {tensor.name: int(tensor.n_bytes) for tensor in reader.tensors}
        architecture = _field(reader, "general.architecture")
        layers = int(_field(reader, f"{architecture}.block_count"))
        heads = _field(reader, f"{architecture}.attention.head_count")
        kv_heads = _each(_field(reader, f"{architecture}.attention.head_count_kv", heads), layers)
        width = int(_field(reader, f"{architecture}.embedding_length")) // max(_each(heads, layers))
        widths = [
            int(_field(reader, f"{architecture}.attention.{n}_length", width)) for n in ("key", "value")
        ]
        bytes_each = [CACHE_BYTES[type] for type in cache_types]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise FormatError(
            path, f"what it streams can't be read from it: {error!r}", "inspect the file"
        ) from error
    unread = sizes.get("token_embd.weight", 0) if "output.weight" in sizes else 0
    kv = sum(kv_heads) * sum(width * size for width, size in zip(widths, bytes_each, strict=True))
    return Streamed(sum(sizes.values()) - unread, unread, kv, memories)


def option(arguments: Sequence[str], names: Sequence[str], default: str) -> str:
    """The last value that a command line's words give to an option of several spellings."""
    found = default
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else (*arguments, default)[place + 1]
    return found


def _header(file: Path) -> dict[str, dict[str, Any]]:
    """The tensors' entries: eight bytes of length, then JSON (safetensors' format)."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            found = json.loads(stream.read(length))
    except (OSError, struct.error, ValueError) as error:
        raise FormatError(file, f"its header can't be read: {error}", "make the checkpoint anew") from error
    return {name: entry for name, entry in found.items() if name != "__metadata__"}


def _held_bytes(entry: dict[str, Any], file: Path) -> int:
    type = entry["dtype"]
    if type not in ELEMENT_BYTES:
        raise FormatError(file, f"it holds tensors of type {type}", "add the type to engines/streamed.py")
    return math.prod(entry["shape"]) * (2 if type in HELD_IN_HALVES else ELEMENT_BYTES[type])


def _field(reader: GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.get_field(key)
    return field.contents() if field else default


def _each(value: Any, layers: int) -> list[int]:
    """A number for every layer: the file gives one for all, or one for each."""
    return [int(part) for part in value] if isinstance(value, list) else [int(value)] * layers
