"""Seeded checkpoints of two layers, a few megabytes, with a tokenizer of one token a byte."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, LAYERS, VOCABULARY = 256, 1024, 4, 2, 2, 256
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def config(model_type: str) -> dict[str, object]:
    return {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        **({"head_dim": HIDDEN // HEADS} if model_type == "qwen3" else {}),
    }


def tensors(model_type: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Random weights with activations large enough that rows differ in their scales."""
    random = torch.Generator().manual_seed(7)

    def draw(*shape: int, spread: float = 0.05, around: float = 0.0) -> Tensor:
        return (torch.randn(*shape, generator=random) * spread + around).to(dtype)

    keys = KV_HEADS * HIDDEN // HEADS
    made = {"model.embed_tokens.weight": draw(VOCABULARY, HIDDEN, spread=1.0)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, rows in (("q", HIDDEN), ("k", keys), ("v", keys)):
            made[f"{prefix}.self_attn.{name}_proj.weight"] = draw(rows, HIDDEN)
            if model_type == "qwen2":
                made[f"{prefix}.self_attn.{name}_proj.bias"] = draw(rows, spread=0.5)
        made[f"{prefix}.self_attn.o_proj.weight"] = draw(HIDDEN, HIDDEN)
        made[f"{prefix}.mlp.gate_proj.weight"] = draw(INTERMEDIATE, HIDDEN)
        made[f"{prefix}.mlp.up_proj.weight"] = draw(INTERMEDIATE, HIDDEN)
        made[f"{prefix}.mlp.down_proj.weight"] = draw(HIDDEN, INTERMEDIATE)
        for name in ("input_layernorm", "post_attention_layernorm"):
            made[f"{prefix}.{name}.weight"] = draw(HIDDEN, spread=0.2, around=1.0)
        for name in ("q_norm", "k_norm") if model_type == "qwen3" else ():
            made[f"{prefix}.self_attn.{name}.weight"] = draw(HIDDEN // HEADS, spread=0.2, around=1.0)
    made["model.norm.weight"] = draw(HIDDEN, spread=0.2, around=1.0)
    made["lm_head.weight"] = draw(VOCABULARY, HIDDEN)
    return made


def write(directory: Path, model_type: str, dtype: torch.dtype) -> Path:
    """A whole checkpoint in two shards."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config(model_type)))
    (directory / "generation_config.json").write_text('{"eos_token_id": 0}')
    made = tensors(model_type, dtype)
    names = sorted(made)
    halves = (names[::2], names[1::2])
    for number, half in enumerate(halves, start=1):
        save_file({name: made[name] for name in half}, directory / f"model-0000{number}-of-00002.safetensors")
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(alphabet()))}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.enable_truncation(16)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def alphabet() -> list[str]:
    return list(pre_tokenizers.ByteLevel.alphabet())
