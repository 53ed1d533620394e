from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reproquant.fp8 import decoder
from reproquant.fp8.source import NORMS, Decoder

DECODER = Decoder(
    layers=1,
    hidden=32,
    intermediate=48,
    heads=4,
    kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    norms=NORMS,
)
TOKENS = 20


def weights() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(5)
    names = ("q", "k", "v", "o", "gate", "up", "down")
    blocks = dict.fromkeys(names[:4], "self_attn") | dict.fromkeys(names[4:], "mlp")
    full = {f"{block}.{name}_proj": None for name, block in blocks.items()}
    return {name: torch.randn(DECODER.linear_shape(name), generator=random) * 0.2 for name in full}


def layer(hidden: Tensor) -> Tensor:
    matrices = weights()

    def project(names: Sequence[str], values: Tensor) -> list[Tensor]:
        return [values @ matrices[name].T for name in names]

    norms = dict.fromkeys(NORMS, torch.ones(DECODER.hidden))
    return decoder.layer(
        hidden, DECODER, norms, project, decoder.rotary(DECODER, hidden.shape[1], hidden.dtype)
    )


def by_the_textbook(hidden: Tensor) -> Tensor:
    """The same layer in complex numbers and float64, one query position and head at a time."""
    matrices = {name: matrix.double() for name, matrix in weights().items()}
    hidden = hidden[0].double()

    def norm(values: Tensor) -> Tensor:
        return values / (values.square().mean(-1, keepdim=True) + DECODER.rms_norm_eps).sqrt()

    def heads(name: str) -> Tensor:
        return (norm(hidden) @ matrices[f"self_attn.{name}_proj"].T).view(TOKENS, -1, DECODER.head_dim)

    def rotate(values: Tensor) -> Tensor:
        half = DECODER.head_dim // 2
        pairs = torch.complex(values[..., :half], values[..., half:])
        speeds = DECODER.rope_theta ** (-torch.arange(half).double() / half)
        turned = pairs * torch.exp(1j * torch.outer(torch.arange(TOKENS).double(), speeds))[:, None]
        return torch.cat((turned.real, turned.imag), dim=-1)

    query, key, value = rotate(heads("q")), rotate(heads("k")), heads("v")
    mixed = torch.zeros_like(query)
    for position in range(TOKENS):
        for head in range(DECODER.heads):
            shared = head // (DECODER.heads // DECODER.kv_heads)
            scores = key[: position + 1, shared] @ query[position, head] / DECODER.head_dim**0.5
            mixed[position, head] = scores.softmax(0) @ value[: position + 1, shared]
    hidden = hidden + mixed.flatten(1) @ matrices["self_attn.o_proj"].T
    gate, up = (norm(hidden) @ matrices[f"mlp.{name}_proj"].T for name in ("gate", "up"))
    return (hidden + (gate * gate.sigmoid() * up) @ matrices["mlp.down_proj"].T)[None]


def test_a_layer_computes_what_the_textbook_says() -> None:
    hidden = torch.randn(1, TOKENS, DECODER.hidden, generator=torch.Generator().manual_seed(6))
    torch.testing.assert_close(layer(hidden).double(), by_the_textbook(hidden), rtol=1e-4, atol=1e-4)


def test_a_later_token_changes_nothing_before_it() -> None:
    hidden = torch.randn(1, TOKENS, DECODER.hidden, generator=torch.Generator().manual_seed(6))
    changed = hidden.clone()
    changed[0, -1] += 1
    before, after = layer(hidden), layer(changed)
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])
