"""Seeded random weights of a Qwen2 shape, with Qwen's real tokenizer.

For speed: how fast a model runs depends on its shape, not on its values. What
it answers is noise, so no quality can be measured on it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import NormalDist
from typing import Any, BinaryIO

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

from reproquant.errors import FormatError, StudyError
from reproquant.files import write_json
from reproquant.model.tokenizer import Vocabulary
from reproquant.study import Shape, SyntheticModel, read_yaml

Bits = NDArray[np.uint16]
Tensor = tuple[str, tuple[int, ...]]

BFLOAT16_BYTES = 2
BFLOAT16_ONE = 0x3F80
SHARD_BYTES = 4_000_000_000
CHUNK_VALUES = 1 << 22
THREADS = 4
DEVIATION = 0.02  # initializer_range of Qwen2's config.json; a forward stays finite
NOTE = (
    "Random weights (seed {seed}, normal, standard deviation {deviation}): the shape is Qwen2's, the values "
    "are noise. Speed can be measured on them, quality can't. The tokenizer is Qwen2's own, rebuilt from "
    "{tokenizer}."
)


def make(spec: SyntheticModel, tokenizer_gguf: Path, target: Path) -> dict[str, Any]:
    """Write a bfloat16 checkpoint of the spec's shape into ``target`` and return the manifest's ``source``.

    A tensor's values depend on the seed and its name alone: not on the shape of
    others, the sharding, the threads or the numpy version. ``tokenizer_gguf`` is
    ``models/ggml-vocab-qwen2.gguf`` of llama.cpp's source. Memory stays under
    1 GB whatever the shape. Raises StudyError if the sizes don't fit together, FormatError if
    the GGUF holds no Qwen2 vocabulary.
    """
    shape = spec.shape or preset(str(spec.preset))
    vocabulary = Vocabulary.read(GGUFReader(tokenizer_gguf), tokenizer_gguf)
    if vocabulary.words != "qwen2":
        raise FormatError(
            tokenizer_gguf, "its vocabulary is not Qwen2's", "give llama.cpp's ggml-vocab-qwen2.gguf"
        )
    check(shape, vocabulary)
    target.mkdir(parents=True, exist_ok=True)
    write_weights(shape, spec.seed, target)
    ids = {f"{name}_id": number for name, number in vocabulary.named.items() if name != "unk_token"}
    write_json(target / "config.json", {**_config(shape, vocabulary), **ids})
    write_json(target / "generation_config.json", ids)
    vocabulary.write(target)
    return {
        "kind": "synthetic",
        "seed": spec.seed,
        "preset": spec.preset,
        "licence": "none: made by this workflow from random numbers; tokenizer Apache-2.0",
        "note": NOTE.format(seed=spec.seed, deviation=DEVIATION, tokenizer=tokenizer_gguf.name),
    }


def preset(name: str) -> Shape:
    """A shape from presets.yaml; raises StudyError that lists the names there are."""
    presets = read_yaml(Path(__file__).with_name("presets.yaml"))
    if name not in presets:
        raise StudyError(
            "model.synthetic.preset", f"there is no '{name}'", f"use one of: {', '.join(presets)}"
        )
    return Shape.model_validate(presets[name])


def check(shape: Shape, vocabulary: Vocabulary) -> None:
    """Raise StudyError if the shape's sizes don't fit together or can't hold the vocabulary."""
    where = "model.synthetic.shape"
    if shape.hidden_size % (2 * shape.num_attention_heads):
        raise StudyError(
            f"{where}.hidden_size",
            f"{shape.hidden_size} can't be split into {shape.num_attention_heads} heads of an even size",
            f"give a multiple of {2 * shape.num_attention_heads}",
        )
    if shape.num_attention_heads % shape.num_key_value_heads:
        raise StudyError(
            f"{where}.num_key_value_heads",
            f"{shape.num_attention_heads} heads can't share {shape.num_key_value_heads} evenly",
            "give a divisor of num_attention_heads",
        )
    if shape.vocab_size < len(vocabulary.tokens):
        raise StudyError(
            f"{where}.vocab_size",
            f"Qwen's tokenizer has {len(vocabulary.tokens)} tokens, more than {shape.vocab_size}",
            "give at least that many; the converter recognises only the whole vocabulary",
        )


def tensors(shape: Shape) -> list[Tensor]:
    """Names and shapes of a Qwen2 checkpoint's tensors, in the order they are written."""
    hidden, feed_forward = shape.hidden_size, shape.intermediate_size
    key = hidden // shape.num_attention_heads * shape.num_key_value_heads
    layer: list[Tensor] = [
        ("input_layernorm.weight", (hidden,)),
        ("self_attn.q_proj.weight", (hidden, hidden)),
        ("self_attn.q_proj.bias", (hidden,)),
        ("self_attn.k_proj.weight", (key, hidden)),
        ("self_attn.k_proj.bias", (key,)),
        ("self_attn.v_proj.weight", (key, hidden)),
        ("self_attn.v_proj.bias", (key,)),
        ("self_attn.o_proj.weight", (hidden, hidden)),
        ("post_attention_layernorm.weight", (hidden,)),
        ("mlp.gate_proj.weight", (feed_forward, hidden)),
        ("mlp.up_proj.weight", (feed_forward, hidden)),
        ("mlp.down_proj.weight", (hidden, feed_forward)),
    ]
    layers = [
        (f"model.layers.{number}.{name}", size)
        for number in range(shape.num_hidden_layers)
        for name, size in layer
    ]
    head: list[Tensor] = [] if shape.tie_word_embeddings else [("lm_head.weight", (shape.vocab_size, hidden))]
    return [
        ("model.embed_tokens.weight", (shape.vocab_size, hidden)),
        *layers,
        ("model.norm.weight", (hidden,)),
        *head,
    ]


def write_weights(shape: Shape, seed: int, target: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Write all weights, in shards of at most ``shard_bytes`` unless one tensor alone is larger.

    Some shards are written at a time: numpy draws numbers and looks them up without Python's lock.
    """
    shards: list[list[Tensor]] = [[]]
    for tensor in tensors(shape):
        if shards[-1] and _bytes([*shards[-1], tensor]) > shard_bytes:
            shards.append([])
        shards[-1].append(tensor)
    if len(shards) == 1:
        return _write_shard(target / "model.safetensors", shards[0], seed)
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    with ThreadPoolExecutor(THREADS) as pool:
        for written in [
            pool.submit(_write_shard, target / name, shard, seed)
            for name, shard in zip(names, shards, strict=True)
        ]:
            written.result()
    index = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor, _ in shard}
    total = sum(_bytes(shard) for shard in shards)
    write_json(
        target / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index}
    )


def _write_shard(path: Path, shard: Sequence[Tensor], seed: int) -> None:
    """Write one safetensors file, chunk by chunk: safetensors' numpy side knows no bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, size in shard:
        end = offset + math.prod(size) * BFLOAT16_BYTES
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    quantiles = normal_quantiles()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, size in shard:
            _write_values(file, name, math.prod(size), seed, quantiles)


def _write_values(file: BinaryIO, name: str, count: int, seed: int, quantiles: Bits) -> None:
    if name.endswith("norm.weight"):
        file.write(np.full(count, BFLOAT16_ONE, dtype="<u2").tobytes())
        return
    for chunk in random_values(name, count, seed, quantiles):
        file.write(chunk.astype("<u2", copy=False).data)


def random_values(name: str, count: int, seed: int, quantiles: Bits) -> Iterator[Bits]:
    """``count`` bfloat16 bit patterns in chunks, drawn from a stream of the tensor's own.

    Each 16 random bits of a Philox generator pick one of 65536 equally likely
    values. numpy promises that raw stream for all versions (NEP 19), which it
    doesn't for ``standard_normal``; it is also several times faster.
    """
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "little")
    generator = np.random.Philox(key=key)
    for start in range(0, count, CHUNK_VALUES):
        wanted = min(CHUNK_VALUES, count - start)
        raw = generator.random_raw(-(-wanted // 4)).astype("<u8", copy=False)
        yield quantiles[raw.view("<u2")[:wanted]]


def normal_quantiles() -> Bits:
    """bfloat16 bits of the 65536 mid-quantiles of a normal distribution with deviation DEVIATION."""
    normal = NormalDist(0.0, DEVIATION)
    values = np.array([normal.inv_cdf((step + 0.5) / 65536) for step in range(65536)], dtype=np.float32)
    bits = values.view(np.uint32)
    round_to_even = 0x7FFF + ((bits >> 16) & 1)
    return ((bits + round_to_even) >> 16).astype(np.uint16)


def _bytes(shard: Sequence[Tensor]) -> int:
    return sum(math.prod(size) for _, size in shard) * BFLOAT16_BYTES


def _config(shape: Shape, vocabulary: Vocabulary) -> dict[str, Any]:
    """Qwen2's config.json; what a shape doesn't say is as Qwen2.5's own models have it."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        **shape.model_dump(),
        "max_position_embeddings": vocabulary.context_length,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-06,
        "hidden_act": "silu",
        "initializer_range": DEVIATION,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
    }
