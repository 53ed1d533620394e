"""AutoFP8's procedure written plainly: a whole model, an observer on every Linear, row after row.

Formulas: github.com/neuralmagic/AutoFP8 at commit 505a7ed, auto_fp8/quantize.py.
"""

from __future__ import annotations

import torch
from tiny_checkpoint import HEADS, HIDDEN, LAYERS
from torch import Tensor
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu


def per_tensor(values: Tensor) -> tuple[Tensor, Tensor]:
    """Codes, and the float32 scale to multiply them with."""
    inverse = 448.0 / values.abs().max().clamp(min=1e-12)
    return (values * inverse).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), inverse.float().reciprocal()


class WholeModel:
    """``scales`` holds each Linear's input scale after the rows passed to ``observe``."""

    def __init__(self, tensors: dict[str, Tensor], keeps_the_bug: bool) -> None:
        self.tensors = tensors
        self.keeps_the_bug = keeps_the_bug
        self.weights = {
            name: per_tensor(tensor) for name, tensor in tensors.items() if name.endswith("_proj.weight")
        }
        self.scales: dict[str, Tensor] = {}

    def linear(self, name: str, values: Tensor) -> Tensor:
        codes, scale = per_tensor(values)
        self.scales[name] = max(scale, self.scales.get(name, scale))
        seen = codes.to(values.dtype) * (self.scales[name] if self.keeps_the_bug else scale)
        weight_codes, weight_scale = self.weights[f"{name}.weight"]
        weight = weight_codes.to(values.dtype) * weight_scale.to(values.dtype)
        return linear(seen, weight, self.tensors.get(f"{name}.bias"))

    def norm(self, name: str, values: Tensor) -> Tensor:
        wide = values.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.tensors[f"{name}.weight"] * wide.to(values.dtype)

    def observe(self, ids: Tensor) -> None:
        """Pass a row for the sake of its scales."""
        self.forward(ids)

    def forward(self, ids: Tensor) -> Tensor:
        """The last layer's output, [1, tokens, hidden]."""
        hidden = embedding(ids[None], self.tensors["model.embed_tokens.weight"])
        for layer in range(LAYERS):
            prefix = f"model.layers.{layer}"
            normed = self.norm(f"{prefix}.input_layernorm", hidden)
            hidden = hidden + self.linear(f"{prefix}.self_attn.o_proj", self.attention(prefix, normed))
            normed = self.norm(f"{prefix}.post_attention_layernorm", hidden)
            gate = silu(self.linear(f"{prefix}.mlp.gate_proj", normed))
            mixed = gate * self.linear(f"{prefix}.mlp.up_proj", normed)
            hidden = hidden + self.linear(f"{prefix}.mlp.down_proj", mixed)
        return hidden

    def attention(self, prefix: str, normed: Tensor) -> Tensor:
        heads = []
        for name in "qkv":
            values = self.linear(f"{prefix}.self_attn.{name}_proj", normed)
            values = values.view(1, normed.shape[1], -1, HIDDEN // HEADS)
            if f"{prefix}.self_attn.{name}_norm.weight" in self.tensors:
                values = self.norm(f"{prefix}.self_attn.{name}_norm", values)
            heads.append(values.transpose(1, 2))
        query, key, value = heads
        mixed = scaled_dot_product_attention(
            rotated(query), rotated(key), value, is_causal=True, enable_gqa=True
        )
        return mixed.transpose(1, 2).reshape(normed.shape)


def rotated(values: Tensor) -> Tensor:
    """Rotary embedding with theta 10000 of [1, heads, tokens, size]."""
    tokens, size = values.shape[-2:]
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, size, 2).float() / size)
    angles = torch.outer(torch.arange(tokens).float(), frequencies).repeat(1, 2)
    half = size // 2
    turned = torch.cat((-values[..., half:], values[..., :half]), dim=-1)
    return values * angles.cos().to(values.dtype) + turned * angles.sin().to(values.dtype)
