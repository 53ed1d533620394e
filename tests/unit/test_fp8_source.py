from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reproquant.errors import FormatError
from reproquant.fp8.source import LINEARS, NORMS, Decoder, Source

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "vocab_size": 16,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A checkpoint of zeros that can be quantized."""
    decoder = Decoder.from_config(CONFIG, tmp_path)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (16, 8), "model.norm.weight": (8,)}
    for layer in range(2):
        shapes |= {f"model.layers.{layer}.{name}.weight": decoder.linear_shape(name) for name in LINEARS}
        shapes |= {f"model.layers.{layer}.{name}.weight": (8,) for name in NORMS}
        shapes |= {f"model.layers.{layer}.self_attn.q_proj.bias": (8,)}
    save_file(
        {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, tmp_path / "model.safetensors"
    )
    configure(tmp_path, {})
    return tmp_path


def configure(directory: Path, changes: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(CONFIG | changes))


def change_tensors(directory: Path, changes: dict[str, np.ndarray | None]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def test_a_dense_checkpoint_is_taken_with_its_sizes(directory: Path) -> None:
    source = Source.load(directory)
    assert (source.dtype, source.decoder.head_dim, source.decoder.rope_theta) == ("F16", 4, 1e6)
    assert source.bytes == sum(
        tensor.nbytes for tensor in load_file(directory / "model.safetensors").values()
    )
    assert len(source.layer(0)) == len(LINEARS) + len(NORMS) + 1


def test_the_rotary_base_is_found_under_its_newer_key(directory: Path) -> None:
    configure(directory, {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    assert Source.load(directory).decoder.rope_theta == 5e5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts": 8, "architectures": ["Qwen2MoeForCausalLM"]}, "mixture of experts"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantized already \(gptq\)"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel has no forward pass here"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope type llama3"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"intermediate_size": 24}, r"\[12, 8\], not \[24, 8\]"),
        ({"num_hidden_layers": 3}, r"model\.layers\.2\.\S+ is missing"),
        ({"num_hidden_layers": 1}, r"model\.layers\.1\.\S+ would be ignored"),
    ],
)
def test_a_config_that_the_forward_pass_does_not_fit_is_refused(
    directory: Path, changes: dict[str, Any], words: str
) -> None:
    configure(directory, changes)
    with pytest.raises(FormatError, match=words):
        Source.load(directory)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.layers.0.mlp.up_proj.weight": None}, "up_proj.weight is missing"),
        (
            {"model.layers.0.self_attn.q_norm.weight": np.zeros(4, np.float16)},
            "q_norm.weight would be ignored",
        ),
        ({"model.layers.1.mlp.up_proj.weight": np.zeros((12, 8), np.int8)}, "is I8"),
        (
            {"model.layers.1.mlp.up_proj.weight": np.zeros((12, 8), np.float32)},
            r"several dtypes \(F16, F32\)",
        ),
    ],
)
def test_tensors_that_cannot_be_quantized_are_refused_by_name(
    directory: Path, changes: dict[str, np.ndarray | None], words: str
) -> None:
    change_tensors(directory, changes)
    with pytest.raises(FormatError, match=words):
        Source.load(directory)


def test_a_cut_off_file_is_refused(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match="shorter or longer than its header says"):
        Source.load(directory)


@pytest.mark.parametrize(
    "content",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n",
        b"<!doctype html>",
        b"short",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 14) + b'{"w": [1, 2]} ',
        struct.pack("<Q", 21) + b'{"w": {"dtype": "F16"',
    ],
)
def test_a_file_that_is_no_safetensors_is_refused(content: bytes, directory: Path) -> None:
    """A pointer of Git LFS above all: its first bytes announce a header of 2 EB."""
    (directory / "model.safetensors").write_bytes(content)
    with pytest.raises(FormatError, match="no safetensors header"):
        Source.load(directory)


def test_a_folder_without_safetensors_is_refused(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    with pytest.raises(FormatError, match=r"no \*\.safetensors file"):
        Source.load(directory)


def test_a_config_key_that_is_missing_is_named(directory: Path) -> None:
    (directory / "config.json").write_text(
        json.dumps({k: v for k, v in CONFIG.items() if k != "hidden_size"})
    )
    with pytest.raises(FormatError, match="the key 'hidden_size' is missing"):
        Source.load(directory)
