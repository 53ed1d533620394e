"""Tensors in and out of safetensors files, each held once in memory or, where it is copied, not at all."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproquant.errors import FormatError
from reproquant.fp8.source import StoredTensor

DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
COPY_BYTES = 1 << 24


def read(tensor: StoredTensor) -> Tensor:
    """A tensor as it is stored. A mapping of the file would be quicker to get but stay resident."""
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        return take(file, DTYPES[tensor.dtype], tensor.shape)


def read_rows(tensor: StoredTensor, rows: Tensor) -> Tensor:
    """Some rows of a stored matrix, [len(rows), columns], without reading the others."""
    row_bytes = tensor.bytes // tensor.shape[0]
    with tensor.file.open("rb") as file:
        found = []
        for row in rows.tolist():
            file.seek(tensor.offset + row * row_bytes)
            found.append(take(file, DTYPES[tensor.dtype], tensor.shape[1:]))
    return torch.stack(found)


def take(file: BufferedReader, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The next bytes of a file as a tensor; raises FormatError if there are too few."""
    buffer = torch.empty(torch.Size(shape).numel() * dtype.itemsize, dtype=torch.uint8)
    if file.readinto(memoryview(buffer.numpy())) < len(buffer):
        raise FormatError(file.name, "it ends in the middle of a tensor", "make or fetch the file again")
    return buffer.view(dtype).view(shape)


def bytes_of(tensor: Tensor) -> memoryview:
    """A tensor's bytes in order, without a copy unless it lies on another device or not in one piece."""
    return memoryview(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy())


def write(path: Path, tensors: Mapping[str, Tensor | StoredTensor]) -> str:
    """Write a safetensors file and return its sha256; equal tensors give equal bytes.

    What is stored elsewhere is copied through in pieces. Wide types come first,
    so that every tensor is aligned.
    """
    widths = {name: DTYPES[_entry(tensor)["dtype"]].itemsize for name, tensor in tensors.items()}
    order = sorted(tensors, key=lambda name: (-widths[name], name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        entry = _entry(tensors[name])
        size = torch.Size(entry["shape"]).numel() * widths[name]
        header[name] = {**entry, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    pieces = (piece for name in order for piece in _pieces(tensors[name]))
    with path.open("wb") as file:
        for piece in chain((struct.pack("<Q", len(text)) + text,), pieces):
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


def _entry(tensor: Tensor | StoredTensor) -> dict[str, Any]:
    dtype = tensor.dtype if isinstance(tensor, StoredTensor) else NAMES[tensor.dtype]
    return {"dtype": dtype, "shape": list(tensor.shape)}


def _pieces(tensor: Tensor | StoredTensor) -> Iterator[bytes | memoryview]:
    """A tensor's bytes, a stored one's in pieces."""
    if isinstance(tensor, Tensor):
        yield bytes_of(tensor)
        return
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        for start in range(0, tensor.bytes, COPY_BYTES):
            yield file.read(min(COPY_BYTES, tensor.bytes - start))
