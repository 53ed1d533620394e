"""Small GGUF files with random tensors or a tiny vocabulary, for the tests of the model sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from numpy.typing import NDArray

from reproquant.model.embedded import LlamaShape

SHAPE = LlamaShape(
    layers=2,
    hidden=64,
    feed_forward=96,
    heads=2,
    key_value_heads=1,
    vocabulary=32,
    context=128,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def llama_tensors(seed: int) -> dict[str, NDArray[np.float32]]:
    """The tensors of a random Llama of SHAPE, under GGUF's names and in llama.cpp's layout."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return random.normal(0, 0.2, (rows, columns)).astype(np.float32)

    def norm() -> NDArray[np.float32]:
        return random.uniform(0.5, 1.5, SHAPE.hidden).astype(np.float32)

    tensors = {"token_embd.weight": matrix(SHAPE.vocabulary, SHAPE.hidden), "output_norm.weight": norm()}
    key = SHAPE.key_value_heads * SHAPE.head_size
    for layer in range(SHAPE.layers):
        parts = {
            "attn_norm": norm(),
            "ffn_norm": norm(),
            "attn_q": matrix(SHAPE.hidden, SHAPE.hidden),
            "attn_k": matrix(key, SHAPE.hidden),
            "attn_v": matrix(key, SHAPE.hidden),
            "attn_output": matrix(SHAPE.hidden, SHAPE.hidden),
            "ffn_gate": matrix(SHAPE.feed_forward, SHAPE.hidden),
            "ffn_up": matrix(SHAPE.feed_forward, SHAPE.hidden),
            "ffn_down": matrix(SHAPE.hidden, SHAPE.feed_forward),
        }
        tensors |= {f"blk.{layer}.{role}.weight": values for role, values in parts.items()}
    return tensors


def write_vocabulary(writer: GGUFWriter, tokens: list[str], words: str) -> None:
    """Byte-level BPE metadata; the first three tokens are the control tokens."""
    types = [TokenType.CONTROL if token in CONTROL else TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_llama(path: Path, words: str = "smollm") -> None:
    """A whole Llama of SHAPE, matrices in Q4_1 as the embedded package has them."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(SHAPE.layers)
    writer.add_embedding_length(SHAPE.hidden)
    writer.add_feed_forward_length(SHAPE.feed_forward)
    writer.add_head_count(SHAPE.heads)
    writer.add_head_count_kv(SHAPE.key_value_heads)
    writer.add_context_length(SHAPE.context)
    writer.add_rope_freq_base(SHAPE.rope_theta)
    writer.add_layer_norm_rms_eps(SHAPE.rms_norm_eps)
    write_vocabulary(
        writer, CONTROL + [f"t{number}" for number in range(SHAPE.vocabulary - len(CONTROL))], words
    )
    for name, values in llama_tensors(seed=1).items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            packed = quantize(values, GGMLQuantizationType.Q4_1)
            writer.add_tensor(name, packed, raw_dtype=GGMLQuantizationType.Q4_1)
    finish(writer)


def write_qwen2_vocabulary(path: Path, tokens: list[str], words: str = "qwen2") -> None:
    """A GGUF with a vocabulary alone, as llama.cpp's source tree has them."""
    writer = GGUFWriter(path, "qwen2")
    writer.add_context_length(64)
    write_vocabulary(writer, tokens, words)
    finish(writer)
