"""What a GGUF holds, and whether its tensors have the types that its quantization promises."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gguf import GGUFReader, LlamaFileType

from reproquant.errors import FormatError
from reproquant.gguf.header import Header

NO_PROMISE = "no promise known"
REMEDY = "delete it and run the workflow again: it makes the file anew"


class Promise(NamedTuple):
    """Tensor types of most matrices, of ``attn_v`` and ``ffn_down`` in chosen layers, and of the output."""

    matrix: str
    chosen: str
    output: str


# llama.cpp 0c1e570, src/llama-quant.cpp, llama_tensor_get_type_impl, without an importance matrix.
PROMISES = {
    **{type: Promise(type, type, type) for type in ("F32", "F16", "BF16", "Q8_0", "Q6_K")},
    **{type: Promise(type, type, "Q6_K") for type in ("Q4_0", "Q4_1", "Q5_0", "Q5_1")},
    "Q4_K_M": Promise("Q4_K", "Q6_K", "Q6_K"),
    "Q5_K_S": Promise("Q5_K", "Q5_K", "Q6_K"),
    "Q5_K_M": Promise("Q5_K", "Q6_K", "Q6_K"),
}
# The dense decoders that the rules above were read for; at 80 layers llama.cpp makes exceptions.
ARCHITECTURES = ("llama", "qwen2", "qwen3")
EXCEPTIONAL_LAYERS = 80


class Tensor(NamedTuple):
    """One tensor; ``shape`` in GGUF's order, row length first."""

    name: str
    type: str
    shape: tuple[int, ...]
    bytes: int


def inspect(path: Path, type: str) -> dict[str, Any]:
    """Facts about a GGUF that was made as ``type`` (``f16`` or a quantization such as ``Q4_K_M``).

    ``tensors`` gives count and bytes for each tensor type, ``bits_per_weight``
    counts all tensor bytes over all parameters. ``as_promised`` says whether
    every tensor has the type that llama.cpp's rule for ``type`` gives it;
    ``fallbacks`` lists those that don't, because llama.cpp takes another type
    where a row isn't a multiple of the block. Where the rule isn't known to
    this program, ``as_promised`` is the text ``no promise known``.

    Raises FormatError if the file is no GGUF.
    """
    reader = _open(path)
    architecture = str(_field(reader, "general.architecture"))
    tensors = [
        Tensor(item.name, item.tensor_type.name, tuple(map(int, item.shape)), int(item.n_bytes))
        for item in reader.tensors
    ]
    layers = int(_field(reader, f"{architecture}.block_count") or 0)
    promise = _promise(type, architecture, layers, int(_field(reader, f"{architecture}.expert_count") or 0))
    fallbacks = _fallbacks(tensors, promise, layers) if promise else []
    parameters = sum(math.prod(tensor.shape) for tensor in tensors)
    tensor_bytes = sum(tensor.bytes for tensor in tensors)
    return {
        "type": type,
        "file_type": _file_type(reader),
        "name": _field(reader, "general.name"),
        "architecture": architecture,
        "parameters": parameters,
        "file_bytes": path.stat().st_size,
        "tensor_bytes": tensor_bytes,
        "bits_per_weight": 8 * tensor_bytes / parameters,
        "tensors": _by_type(tensors),
        "as_promised": not fallbacks if promise else NO_PROMISE,
        "fallbacks": fallbacks,
    }


def require_type(path: Path, type: str) -> None:
    """Raise FormatError unless the file is a whole GGUF whose metadata says ``type``."""
    found = _file_type(_open(path))
    if found != type.upper():
        raise FormatError(path, f"its metadata says {found}, and {type.upper()} was asked for", REMEDY)


def _open(path: Path) -> GGUFReader:
    """The file, mapped into memory; a reader that fails or finds too few bytes means it is no whole GGUF."""
    try:
        return Header(path)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise FormatError(path, f"it is no whole GGUF file: {error}", REMEDY) from error


def _field(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    return field.contents() if field else None


def _file_type(reader: GGUFReader) -> str:
    """``general.file_type`` as llama-quantize names it, or its number if gguf doesn't know it."""
    number = _field(reader, "general.file_type")
    try:
        return re.sub("^(MOSTLY|ALL)_", "", LlamaFileType(number).name)
    except ValueError:
        return str(number)


def _by_type(tensors: Iterable[Tensor]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        entry = found.setdefault(tensor.type, {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += tensor.bytes
    return found


def _promise(type: str, architecture: str, layers: int, experts: int) -> Promise | None:
    if architecture not in ARCHITECTURES or experts or layers == EXCEPTIONAL_LAYERS:
        return None
    return PROMISES.get(type.upper())


def _fallbacks(tensors: list[Tensor], promise: Promise, layers: int) -> list[dict[str, str]]:
    tied = all(tensor.name != "output.weight" for tensor in tensors)
    wanted = [(tensor, _promised_type(tensor, promise, layers, tied)) for tensor in tensors]
    return [
        {"tensor": tensor.name, "promised": promised, "found": tensor.type}
        for tensor, promised in wanted
        if tensor.type != promised
    ]


def _promised_type(tensor: Tensor, promise: Promise, layers: int, tied: bool) -> str:
    """Vectors stay F32; a model with tied embeddings has no output matrix, its embedding takes that part."""
    if len(tensor.shape) == 1:
        return "F32"
    if tensor.name == ("token_embd.weight" if tied else "output.weight"):
        return promise.output
    block = re.fullmatch(r"blk\.(\d+)\.(attn_v|ffn_down)\.weight", tensor.name)
    return promise.chosen if block and _more_bits(int(block[1]), layers) else promise.matrix


def _more_bits(layer: int, layers: int) -> bool:
    """The layers that a ``_M`` quantization spends more on: first and last eighth, every third between.

    ``use_more_bits`` in llama.cpp's src/llama-quant.cpp; all divisions are of integers.
    """
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
