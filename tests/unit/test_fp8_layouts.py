"""An FP8 checkpoint in the other layout: the same codes and scales, and back to the same bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest

from reproquant.errors import FormatError
from reproquant.files import read_json, write_json
from reproquant.fp8.layouts import rewrite

PREFIX = "model.layers.0.mlp.up_proj"
CODES = bytes(range(24))


def shard(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """A safetensors file as the library writes it: 8 bytes of length, header, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    entries = json.loads(content[8 : 8 + length])
    data = content[8 + length :]
    return {
        name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in entries.items()
        if name != "__metadata__"
    }


def checkpoint(folder: Path, scheme: str = "static") -> Path:
    """AutoFP8's layout, one Linear and a norm, in one shard with an index."""
    folder.mkdir()
    inputs = {f"{PREFIX}.input_scale": ("F32", [], numpy.float32(0.375).tobytes())}
    tensors = {
        **(inputs if scheme == "static" else {}),
        f"{PREFIX}.weight_scale": ("F32", [], numpy.float32(0.0123).tobytes()),
        "model.norm.weight": ("BF16", [3], b"\x80\x3f" * 3),
        f"{PREFIX}.weight": ("F8_E4M3", [4, 6], CODES),
    }
    shard(folder / "model-00001-of-00001.safetensors", tensors)
    total = sum(len(content) for _, _, content in tensors.values())
    weight_map = dict.fromkeys(tensors, "model-00001-of-00001.safetensors")
    write_json(
        folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}
    )
    quantization = {"quant_method": "fp8", "activation_scheme": scheme, "ignored_layers": ["lm_head"]}
    write_json(folder / "config.json", {"hidden_size": 6, "quantization_config": quantization})
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize("scheme", ["static", "dynamic"])
def test_there_and_back_gives_the_same_bytes(scheme: str, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "fp8", scheme)
    rewrite(source, tmp_path / "there", "compressed-tensors")
    rewrite(tmp_path / "there", tmp_path / "back", "fp8")
    for file in source.iterdir():
        assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes(), file.name
    assert len(list((tmp_path / "back").iterdir())) == len(list(source.iterdir()))


def test_compressed_tensors_has_the_same_codes_and_scales_of_one_element(tmp_path: Path) -> None:
    rewrite(checkpoint(tmp_path / "fp8"), tmp_path / "there", "compressed-tensors")
    found = read(tmp_path / "there/model-00001-of-00001.safetensors")
    assert found[f"{PREFIX}.weight"] == ("F8_E4M3", [4, 6], CODES)
    assert found[f"{PREFIX}.input_scale"] == ("F32", [1], numpy.float32(0.375).tobytes())
    quantization = read_json(tmp_path / "there/config.json")["quantization_config"]
    assert quantization["ignore"] == ["lm_head"]
    assert quantization["config_groups"]["group_0"]["input_activations"]["dynamic"] is False


def test_llm_compressors_bfloat16_scales_are_widened_exactly(tmp_path: Path) -> None:
    rewrite(checkpoint(tmp_path / "fp8"), tmp_path / "theirs", "compressed-tensors")
    name = "model-00001-of-00001.safetensors"
    tensors = read(tmp_path / "theirs" / name)
    norm = {"model.norm.weight": tensors.pop("model.norm.weight")}
    tensors[f"{PREFIX}.weight_scale"] = ("BF16", [1], b"\x4a\x3c")  # 0x3c4a0000 is 0.0123291015625
    shard(tmp_path / "theirs" / name, norm | tensors)
    rewrite(tmp_path / "theirs", tmp_path / "ours", "fp8")
    dtype, shape, content = read(tmp_path / "ours" / name)[f"{PREFIX}.weight_scale"]
    assert (dtype, shape) == ("F32", [])
    assert numpy.frombuffer(content, "<f4")[0] == 0.0123291015625
    assert [dtype for dtype, _, _ in read(tmp_path / "ours" / name).values()] == [
        "F32",
        "F32",
        "BF16",
        "F8_E4M3",
    ]
    total = read_json(tmp_path / "ours/model.safetensors.index.json")["metadata"]["total_size"]
    assert total == sum(len(data) for _, _, data in read(tmp_path / "ours" / name).values())


@pytest.mark.parametrize(
    "quantization",
    [
        {},
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}}}},
    ],
)  # fmt: skip
def test_another_quantization_is_refused_before_anything_is_written(
    quantization: dict[str, Any], tmp_path: Path
) -> None:
    source = checkpoint(tmp_path / "source")
    write_json(source / "config.json", {"quantization_config": quantization})
    with pytest.raises(FormatError, match="one weight scale a tensor"):
        rewrite(source, tmp_path / "target", "fp8")
    assert not (tmp_path / "target").exists()


def test_a_scale_that_is_no_single_number_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source")
    shard(source / "model-00002.safetensors", {"x.weight_scale": ("F32", [4, 1], bytes(16))})
    with pytest.raises(FormatError, match=r"x\.weight_scale is F32 \[4, 1\], not one number"):
        rewrite(source, tmp_path / "target", "compressed-tensors")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.json", None), ("config.json", "[1]"), ("model-00001-of-00001.safetensors", "version https://")],
)
def test_a_folder_without_a_checkpoint_is_one_error(name: str, content: str | None, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source")
    (source / name).unlink()
    if content:
        (source / name).write_text(content)
    with pytest.raises(FormatError, match=name):
        rewrite(source, tmp_path / "target", "compressed-tensors")
    assert not (tmp_path / "target").exists()


def test_a_folder_that_exists_is_not_written_over(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source")
    with pytest.raises(FormatError, match="exists already"):
        rewrite(source, source, "compressed-tensors")
