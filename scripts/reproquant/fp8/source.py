"""The checkpoint that is to be quantized: its decoder's shape, and where each tensor lies.

Reads config.json and the headers of the safetensors files, no weights, so
everything that can't be quantized is refused within milliseconds. Needs the
standard library alone: both environments use it.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproquant.errors import FormatError
from reproquant.files import read_json

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
DTYPES = ("BF16", "F16", "F32")

# The Linears of a decoder layer, grouped by the input that they share.
INPUT_GROUPS: tuple[tuple[str, ...], ...] = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
LINEARS = tuple(name for group in INPUT_GROUPS for name in group)
NORMS = ("input_layernorm", "post_attention_layernorm")
# Qwen3 norms every head of queries and keys.
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")

_DENSE = f"quantize a dense model of one of these architectures: {', '.join(ARCHITECTURES)}"
_WHOLE = "fetch or make the checkpoint again"


@dataclass(frozen=True)
class Decoder:
    """The sizes and constants of a Llama, Qwen2 or Qwen3 decoder, from config.json."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    norms: tuple[str, ...]

    @classmethod
    def from_config(cls, config: dict[str, Any], where: Path) -> Decoder:
        """Raises FormatError for a decoder that ``decoder.layer`` does not compute."""
        _refuse_other_decoders(config, where)
        rope = _rope(config)
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or 10000.0),
            norms=NORMS + (HEAD_NORMS if config["architectures"][0] == "Qwen3ForCausalLM" else ()),
        )

    def linear_shape(self, name: str) -> tuple[int, int]:
        """[out, in] of a Linear of a layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "self_attn.q_proj": (queries, self.hidden),
            "self_attn.k_proj": (keys, self.hidden),
            "self_attn.v_proj": (keys, self.hidden),
            "self_attn.o_proj": (self.hidden, queries),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
        }[name]


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's bytes lie, from the file's beginning, and what the header says of them."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True)
class Source:
    """A checkpoint that can be quantized."""

    directory: Path
    config: dict[str, Any]
    decoder: Decoder
    tensors: dict[str, StoredTensor]

    @classmethod
    def load(cls, directory: Path) -> Source:
        """Read config.json and all headers.

        Raises FormatError for a mixture of experts, a checkpoint that is
        quantized already, an architecture other than Llama's, Qwen2's and Qwen3's, rope
        scaling, sliding windows, a dtype other than bfloat16, float16 or
        float32, Linears of several dtypes, and missing or surplus tensors.
        """
        config_path = directory / "config.json"
        try:
            config = read_json(config_path)
            decoder = Decoder.from_config(config, config_path)
        except (OSError, ValueError) as error:
            raise FormatError(config_path, f"it can't be read: {error}", _WHOLE) from error
        except KeyError as error:
            raise FormatError(config_path, f"the key {error} is missing", _WHOLE) from error
        source = cls(directory, config, decoder, headers(directory))
        _refuse_other_dtypes(source)
        _refuse_other_tensors(source)
        return source

    @property
    def dtype(self) -> str:
        """The one dtype of all Linears: BF16, F16 or F32."""
        return self.tensors[f"model.layers.0.{LINEARS[0]}.weight"].dtype

    @property
    def bytes(self) -> int:
        """Of all tensors together."""
        return sum(tensor.bytes for tensor in self.tensors.values())

    def layer(self, index: int) -> list[str]:
        """The names of a layer's tensors, sorted."""
        prefix = f"model.layers.{index}."
        return sorted(name for name in self.tensors if name.startswith(prefix))


def _refuse_other_decoders(config: dict[str, Any], where: Path) -> None:
    if any(config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise FormatError(
            where, "this is a mixture of experts; few calibration rows would reach each expert", _DENSE
        )
    if "quantization_config" in config:
        method = config["quantization_config"].get("quant_method", "an unnamed method")
        raise FormatError(
            where, f"this checkpoint is quantized already ({method})", "give the unquantized one"
        )
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in ARCHITECTURES:
        raise FormatError(where, f"the architecture {architecture} has no forward pass here", _DENSE)
    rope_type = _rope(config).get("rope_type") or _rope(config).get("type") or "default"
    unlike = {
        f"rope type {rope_type}": rope_type != "default",
        "a partial rotary embedding": config.get("partial_rotary_factor", 1.0) != 1.0,
        "a sliding window": bool(config.get("use_sliding_window")),
        f"the activation {config.get('hidden_act')}": config.get("hidden_act", "silu") != "silu",
    }
    if found := [words for words, is_so in unlike.items() if is_so]:
        reason = f"{' and '.join(found)} would be ignored by the calibration's forward pass"
        raise FormatError(where, reason, "use a checkpoint without it, or extend fp8/decoder.py")


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """Rope settings under their present key or their old one."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def headers(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint's safetensors files by name; raises FormatError if one is damaged."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise FormatError(
            directory, "it holds no *.safetensors file", "convert the checkpoint to safetensors first"
        )
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in _header(file).items():
            if name in tensors:
                raise FormatError(file, f"{name} lies in {tensors[name].file.name} too", _WHOLE)
            tensors[name] = tensor
    return tensors


def _header(file: Path) -> dict[str, StoredTensor]:
    """A safetensors header: 8 bytes of length, then JSON, then the tensors' bytes."""
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > size:
                raise ValueError(f"it would be {length} bytes long, in a file of {size}")
            entries = json.loads(stream.read(length))
        tensors = {
            name: _stored(file, entry, 8 + length)
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(file, f"it has no safetensors header: {error}", _WHOLE) from error
    if size != 8 + length + sum(tensor.bytes for tensor in tensors.values()):
        raise FormatError(file, "it is shorter or longer than its header says", _WHOLE)
    return tensors


def _stored(file: Path, entry: dict[str, Any], data: int) -> StoredTensor:
    """A header's entry; ``data`` is where the tensors' bytes begin."""
    begin, end = entry["data_offsets"]
    return StoredTensor(file, entry["dtype"], tuple(entry["shape"]), data + begin, end - begin)


def _refuse_other_dtypes(source: Source) -> None:
    for name, tensor in source.tensors.items():
        if tensor.dtype not in DTYPES:
            reason = f"{name} is {tensor.dtype}; only {', '.join(DTYPES)} can be quantized"
            raise FormatError(tensor.file, reason, "give the unquantized checkpoint")


def _refuse_other_tensors(source: Source) -> None:
    """Every layer has its Linears and norms, of the sizes config.json gives, and nothing else."""
    decoder = source.decoder
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (source.config["vocab_size"], decoder.hidden)
    }
    biases = set()
    for layer in range(decoder.layers):
        for name in LINEARS:
            shapes[f"model.layers.{layer}.{name}.weight"] = decoder.linear_shape(name)
            biases.add(f"model.layers.{layer}.{name}.bias")
        for name in decoder.norms:
            length = decoder.head_dim if name in HEAD_NORMS else decoder.hidden
            shapes[f"model.layers.{layer}.{name}.weight"] = (length,)
    for name, shape in shapes.items():
        found = source.tensors.get(name)
        if found is None or found.shape != shape:
            what = (
                "missing" if found is None else f"{list(found.shape)}, not {list(shape)} as config.json says"
            )
            raise FormatError(source.directory, f"{name} is {what}", _WHOLE)
    surplus = sorted(
        name
        for name in source.tensors
        if re.match(r"model\.layers\.", name) and name not in shapes and name not in biases
    )
    if surplus:
        raise FormatError(
            source.directory, f"{surplus[0]} would be ignored by the calibration's forward pass", _DENSE
        )
    dtypes = {source.tensors[name].dtype for name in shapes if name.rsplit(".", 1)[0].endswith("_proj")}
    if len(dtypes) > 1:
        raise FormatError(
            source.directory,
            f"its Linears are of several dtypes ({', '.join(sorted(dtypes))})",
            "save them in one",
        )
