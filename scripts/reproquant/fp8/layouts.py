"""The FP8 checkpoint in two layouts: AutoFP8's, and llm-compressor's compressed-tensors.

Both hold the same codes and scales. They differ in config.json and in the shape
of a scale: AutoFP8 writes a number, float32 []; llm-compressor a vector of one,
bfloat16 [1]. So a rewrite copies the codes byte for byte, widens scales exactly,
and one there and back gives the same bytes. Needs the standard library alone.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproquant.errors import FormatError
from reproquant.files import read_json, write_json
from reproquant.fp8.source import StoredTensor, headers

SCALES = (".weight_scale", ".input_scale")
FORMAT = "float-quantized"
COPY_BYTES = 1 << 24
WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2}
"""Bytes of an element; safetensors keeps wide ones first, so that all are aligned."""


def rewrite(source: Path, target: Path, layout: str) -> None:
    """Write the checkpoint ``source``, in either layout, as ``layout`` (a key of CONFIGS) into ``target``.

    Raises FormatError, before anything is written, for a folder that holds no
    checkpoint in FP8 with one scale a tensor, and if ``target`` exists.
    """
    if target.exists():
        raise FormatError(target, "it exists already", "name a folder that doesn't")
    config = _config(source / "config.json")
    scheme, ignored = _scheme(config.get("quantization_config") or {}, source / "config.json")
    config["quantization_config"] = CONFIGS[layout](scheme, ignored)
    _refuse_other_scales(headers(source))
    target.mkdir(parents=True)
    for file in sorted(source.iterdir()):
        if file.suffix == ".safetensors":
            _rewrite_shard(file, target / file.name, [] if layout == "fp8" else [1])
        elif file.is_file():
            shutil.copyfile(file, target / file.name)
    write_json(target / "config.json", config)
    _correct_total(target)


def _config(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise FormatError(path, f"it can't be read: {error}", "name the folder of a checkpoint") from None


def _refuse_other_scales(tensors: Mapping[str, StoredTensor]) -> None:
    for name, tensor in tensors.items():
        if name.endswith(SCALES) and (tensor.dtype not in ("F32", "BF16") or tensor.shape not in ((), (1,))):
            what = f"{name} is {tensor.dtype} {list(tensor.shape)}, not one number"
            raise FormatError(tensor.file, what, "give a checkpoint with one scale a tensor")


def _scheme(quantization: dict[str, Any], where: Path) -> tuple[str, list[str]]:
    """``static`` or ``dynamic``, and the modules that aren't quantized."""
    method, scheme = quantization.get("quant_method"), quantization.get("activation_scheme")
    if method == "fp8" and scheme in ("static", "dynamic") and not quantization.get("weight_block_size"):
        return scheme, quantization.get("ignored_layers") or []
    groups = list((quantization.get("config_groups") or {}).values())
    if method == "compressed-tensors" and len(groups) == 1 and groups[0].get("targets") == ["Linear"]:
        weights, inputs = groups[0].get("weights") or {}, groups[0].get("input_activations") or {}
        if _is_fp8(weights, "tensor") and not weights.get("dynamic"):
            if _is_fp8(inputs, "tensor") and not inputs.get("dynamic"):
                return "static", quantization.get("ignore") or []
            if _is_fp8(inputs, "token") and inputs.get("dynamic"):
                return "dynamic", quantization.get("ignore") or []
    raise FormatError(
        where,
        f"its quantization ({method}) is not W8A8 in FP8 with one weight scale a tensor",
        "give a checkpoint of quantize_fp8, or llm-compressor's scheme FP8 or FP8_DYNAMIC with tensor scales",
    )


def _is_fp8(arguments: dict[str, Any], strategy: str) -> bool:
    wanted = {"num_bits": 8, "type": "float", "strategy": strategy}
    return all(arguments.get(key) == value for key, value in wanted.items())


def _autofp8(scheme: str, ignored: list[str]) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": scheme, "ignored_layers": ignored}


def _compressed_tensors(scheme: str, ignored: list[str]) -> dict[str, Any]:
    def arguments(strategy: str, dynamic: bool) -> dict[str, Any]:
        return {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, "dynamic": dynamic}

    static = scheme == "static"
    group = {
        "format": FORMAT,
        "targets": ["Linear"],
        "weights": arguments("tensor", False),
        "input_activations": arguments("tensor" if static else "token", not static),
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignored,
        "kv_cache_scheme": None,
    }


CONFIGS = {"fp8": _autofp8, "compressed-tensors": _compressed_tensors}


def _rewrite_shard(source: Path, target: Path, shape: list[int]) -> None:
    """Copy a safetensors file with its scales as float32 of another shape."""
    with source.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entries = json.loads(file.read(length))
        metadata = entries.pop("__metadata__", None)
        header = _header(entries, shape)
        text = json.dumps(({"__metadata__": metadata} if metadata else {}) | header, separators=(",", ":"))
        padded = text.encode() + b" " * (-len(text.encode()) % 8)
        with target.open("wb") as copy:
            copy.write(struct.pack("<Q", len(padded)) + padded)
            for name in header:
                first, last = entries[name]["data_offsets"]
                file.seek(8 + length + first)
                if entries[name]["dtype"] == "BF16" and name.endswith(SCALES):
                    copy.write(b"\0\0")  # a bfloat16 is a float32's upper half
                for part in range(first, last, COPY_BYTES):
                    copy.write(file.read(min(COPY_BYTES, last - part)))


def _header(entries: dict[str, Any], shape: list[int]) -> dict[str, Any]:
    """The copy's header, in the order of its data."""
    new = {
        name: {**entry, "dtype": "F32", "shape": shape} if name.endswith(SCALES) else entry
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"])
    }
    header, end = {}, 0
    for name, entry in sorted(new.items(), key=lambda item: -WIDTHS.get(item[1]["dtype"], 1)):
        first, last = entry["data_offsets"]
        size = 4 if name.endswith(SCALES) else last - first
        header[name] = {**entry, "data_offsets": [end, end + size]}
        end += size
    return header


def _correct_total(target: Path) -> None:
    """An index tells how many bytes the tensors have, and wider scales have more."""
    index = target / "model.safetensors.index.json"
    if index.is_file():
        data = read_json(index)
        data["metadata"] = {
            **data.get("metadata", {}),
            "total_size": sum(tensor.bytes for tensor in headers(target).values()),
        }
        write_json(index, data)
