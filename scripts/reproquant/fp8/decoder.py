"""The forward pass of one Llama, Qwen2 or Qwen3 decoder layer, with its Linears left to the caller.

The operations and their order are those of transformers 4.57 (models/llama,
qwen2 and qwen3, sdpa attention), in the hidden state's dtype with norms and
rotary angles in float32, so that bfloat16 results agree to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from reproquant.fp8.source import INPUT_GROUPS, Decoder

# The outputs of the named Linears, which share one input.
Project = Callable[[Sequence[str], Tensor], list[Tensor]]
Rotary = tuple[Tensor, Tensor]


def rotary(decoder: Decoder, tokens: int, dtype: torch.dtype) -> Rotary:
    """Cosines and sines for positions 0..tokens-1, each [tokens, head_dim]."""
    exponents = torch.arange(0, decoder.head_dim, 2, dtype=torch.int64).float() / decoder.head_dim
    frequencies = 1.0 / decoder.rope_theta**exponents
    angles = (frequencies[:, None] @ torch.arange(tokens)[None, :].float()).transpose(0, 1)
    both_halves = torch.cat((angles, angles), dim=-1)
    return both_halves.cos().to(dtype), both_halves.sin().to(dtype)


def rms_norm(values: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last axis, in float32, weighted in the values' dtype."""
    wide = values.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(values.dtype)


def layer(
    hidden: Tensor, decoder: Decoder, norms: Mapping[str, Tensor], project: Project, angles: Rotary
) -> Tensor:
    """One layer's output, [1, tokens, hidden] like its input; every token sees those before it."""
    qkv, out, gate_up, down = INPUT_GROUPS
    normed = rms_norm(hidden, norms["input_layernorm"], decoder.rms_norm_eps)
    (attended,) = project(out, _attention(project(qkv, normed), decoder, norms, angles))
    hidden = hidden + attended
    normed = rms_norm(hidden, norms["post_attention_layernorm"], decoder.rms_norm_eps)
    gate, up = project(gate_up, normed)
    (mixed,) = project(down, functional.silu(gate) * up)
    return hidden + mixed


def _attention(
    projected: Sequence[Tensor], decoder: Decoder, norms: Mapping[str, Tensor], angles: Rotary
) -> Tensor:
    """Causal grouped-query attention: [1, tokens, heads x head_dim] from the projections to q, k and v."""
    query, key, value = (part.view(1, part.shape[1], -1, decoder.head_dim) for part in projected)
    if "self_attn.q_norm" in norms:
        query = rms_norm(query, norms["self_attn.q_norm"], decoder.rms_norm_eps)
        key = rms_norm(key, norms["self_attn.k_norm"], decoder.rms_norm_eps)
    mixed = functional.scaled_dot_product_attention(
        _rotate(query.transpose(1, 2), angles),
        _rotate(key.transpose(1, 2), angles),
        value.transpose(1, 2),
        is_causal=True,
        scale=decoder.head_dim**-0.5,
        enable_gqa=True,
    )
    return mixed.transpose(1, 2).reshape(1, mixed.shape[2], -1)


def _rotate(values: Tensor, angles: Rotary) -> Tensor:
    """Rotate pairs (i, i + head_dim/2) of [1, heads, tokens, head_dim] by their position's angles."""
    cosines, sines = angles
    first, second = values.chunk(2, dim=-1)
    return values * cosines + torch.cat((-second, first), dim=-1) * sines
