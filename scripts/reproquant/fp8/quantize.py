"""Write a W8A8 checkpoint in AutoFP8's layout, layer by layer. Runs in the fp8 environment.

    python -m reproquant.fp8.quantize --source DIR --target DIR --calibration FILE \
        --rows 16 --row-tokens 512 --activation-scales corrected --fused-scales separate \
        --activation-scheme static --facts FILE

At any time one layer's weights and the hidden states of all rows are in memory.
The result equals that of passing row after row through the whole model, because
a Linear's scale depends on its own inputs alone, and they come in the same order.

Working dtype: bfloat16 for a bfloat16 checkpoint and float32 for a float32 one,
as AutoFP8 does (mode autofp8 is bit-equal to it on one core). A float16 checkpoint is worked on in
float32: its values fit exactly, CPUs are slow at float16, and activations can
overflow it. The dtype of the tensors decides, not config.json's word. What is
not quantized is copied in the dtype that it has.

The modes stand in config.json under ``reproquant``, beside the quantization_config that
engines read. With activation scheme ``dynamic`` nothing is observed and no input scale written.

It computes on one core. With more, torch's matrix products split their sums
otherwise, and input scales (not weights) move by up to several per cent from
one number of cores to another.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from reproquant.errors import ReproquantError
from reproquant.files import sha256_file, write_json
from reproquant.fp8 import decoder
from reproquant.fp8.calibrate import ObservedLinears, token_rows
from reproquant.fp8.scales import Fusion, Mode, Quantized, Scheme, quantize_together
from reproquant.fp8.source import INPUT_GROUPS, LINEARS, NORMS, Source

WORKING_DTYPE = {"BF16": torch.bfloat16, "F16": torch.float32, "F32": torch.float32}
# Tokenizer, generation settings, licence: what a checkpoint holds besides weights and config.
COMPANIONS = ("*.json", "*.txt", "*.jinja", "*.model", "LICENSE*")
EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True)
class Modes:
    """How the scales come about; the study's section ``fp8`` explains the values."""

    activation_scales: Mode
    fused_scales: Fusion
    activation_scheme: Scheme

    @property
    def together(self) -> tuple[tuple[str, ...], ...]:
        """The Linears in groups that have one weight scale."""
        return INPUT_GROUPS if self.fused_scales == "shared" else tuple((name,) for name in LINEARS)

    @property
    def observing(self) -> bool:
        """Whether calibration rows have to pass."""
        return self.activation_scheme == "static"

    def config(self) -> dict[str, Any]:
        """What config.json says of them: AutoFP8's words for engines, the rest under a key of our own."""
        return {
            "quantization_config": {
                "quant_method": "fp8",
                "activation_scheme": self.activation_scheme,
                "ignored_layers": ["lm_head"],
            },
            "reproquant": asdict(self),
        }


class ShardWriter:
    """Writes one safetensors file per call, then the index; equal tensors give equal bytes."""

    def __init__(self, directory: Path, shards: int) -> None:
        self.directory = directory
        self.shards = shards
        self.weight_map: dict[str, str] = {}
        self.total_bytes = 0
        self._written = 0

    def write(self, tensors: dict[str, Tensor]) -> None:
        self._written += 1
        name = f"model-{self._written:05d}-of-{self.shards:05d}.safetensors"
        save_file(tensors, self.directory / name, metadata={"format": "pt"})
        self.weight_map |= dict.fromkeys(tensors, name)
        self.total_bytes += sum(tensor.nbytes for tensor in tensors.values())

    def finish(self) -> None:
        index = {"metadata": {"total_size": self.total_bytes}, "weight_map": self.weight_map}
        write_json(self.directory / "model.safetensors.index.json", index)


def quantize_checkpoint(source: Source, target: Path, rows: Tensor, modes: Modes) -> dict[str, Any]:
    """Write ``source`` as W8A8 into the folder ``target``; ``rows`` are token ids [rows, row_tokens].

    There are none to observe with ``dynamic`` scales.

    Shards: the embedding, one for each layer, and what comes after the layers.
    Returns the bytes written and the smallest, median and largest scale of
    weights and inputs.
    """
    shards = ShardWriter(target, shards=source.decoder.layers + 2)
    dtype = WORKING_DTYPE[source.dtype]
    angles = decoder.rotary(source.decoder, rows.shape[1], dtype)
    hidden = _embed(source, rows, dtype, shards)
    scales: dict[str, list[float]] = {"weight_scale": [], "input_scale": []}
    for index in range(source.decoder.layers):
        started = time.monotonic()
        tensors, observed = _quantize_layer(source, index, dtype, modes)
        norms = {name: tensors[f"model.layers.{index}.{name}.weight"].to(dtype) for name in NORMS}
        for row, state in enumerate(hidden):
            hidden[row] = decoder.layer(state, source.decoder, norms, observed, angles)
        for name, scale in observed.input_scales().items():
            tensors[f"model.layers.{index}.{name}.input_scale"] = scale
        for kind, values in scales.items():
            values += [tensor.item() for name, tensor in tensors.items() if name.endswith(kind)]
        shards.write(tensors)
        _say(f"layer {index + 1} of {source.decoder.layers}: {time.monotonic() - started:.1f} s")
    shards.write(dict(_load(source, _after_layers(source))))
    shards.finish()
    _copy_companions(source, target, modes)
    spreads = {kind: _spread(values) for kind, values in scales.items() if values}
    return {"bytes": shards.total_bytes, **spreads}


def _embed(source: Source, rows: Tensor, dtype: torch.dtype, shards: ShardWriter) -> list[Tensor]:
    """Copy the embedding and look the rows up in it: a hidden state [1, row_tokens, hidden] for each."""
    tensors = dict(_load(source, [EMBEDDING]))
    shards.write(tensors)
    return [tensors[EMBEDDING][row].to(dtype)[None] for row in rows]


def _quantize_layer(
    source: Source, index: int, dtype: torch.dtype, modes: Modes
) -> tuple[dict[str, Tensor], ObservedLinears]:
    """The layer's tensors as they are stored, still without input scales, and its Linears for calibration."""
    prefix = f"model.layers.{index}."
    quantized = {f"{prefix}{linear}.weight" for linear in LINEARS}
    tensors = dict(_load(source, [name for name in source.layer(index) if name not in quantized]))
    weights: dict[str, Quantized] = {}
    for group in modes.together:
        names = [f"{prefix}{linear}.weight" for linear in group]
        originals = [tensor.to(dtype) for _, tensor in _load(source, names)]
        weights |= zip(group, quantize_together(originals, " or ".join(names)), strict=True)
    for linear, (codes, scale) in weights.items():
        tensors[f"{prefix}{linear}.weight"] = codes
        tensors[f"{prefix}{linear}.weight_scale"] = scale
    biases = {name: tensors[key].to(dtype) for name in LINEARS if (key := f"{prefix}{name}.bias") in tensors}
    return tensors, ObservedLinears(weights, biases, dtype, modes.activation_scales, where=f"layer {index}")


def _after_layers(source: Source) -> list[str]:
    """The final norm, lm_head unless it is tied, and whatever else stands outside the layers."""
    return sorted(
        name for name in source.tensors if not name.startswith("model.layers.") and name != EMBEDDING
    )


def _load(source: Source, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Tensors one by one; each is copied out of the file's mapping, which would else stay resident."""
    for name in names:
        with safe_open(source.tensors[name].file, framework="pt") as file:
            yield name, file.get_tensor(name).clone()


def _copy_companions(source: Source, target: Path, modes: Modes) -> None:
    write_json(target / "config.json", {**source.config, **modes.config()})
    for pattern in COMPANIONS:
        for file in sorted(source.directory.glob(pattern)):
            if file.name != "config.json" and not file.name.endswith(".index.json"):
                shutil.copyfile(file, target / file.name)


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]}


def _say(line: str) -> None:
    print(line, flush=True)


def run(arguments: argparse.Namespace) -> None:
    """Refuse what can't be done, then quantize and write the facts."""
    started = time.monotonic()
    torch.set_num_threads(1)
    source = Source.load(arguments.source)
    modes = Modes(arguments.activation_scales, arguments.fused_scales, arguments.activation_scheme)
    wanted = arguments.rows if modes.observing else 0
    tokenizer = source.directory / "tokenizer.json"
    rows = token_rows(tokenizer, arguments.calibration, wanted, arguments.row_tokens)
    arguments.target.mkdir(parents=True, exist_ok=True)
    _say(
        f"quantizing {source.decoder.layers} layers, {source.bytes / 1e6:.0f} MB, {source.dtype}; "
        f"observing {wanted} rows of {arguments.row_tokens} tokens; {', '.join(asdict(modes).values())}"
    )
    with torch.inference_mode():
        written = quantize_checkpoint(source, arguments.target, rows, modes)
    write_json(
        arguments.facts,
        {
            **written,
            "layers": source.decoder.layers,
            "linears": source.decoder.layers * len(LINEARS),
            "source_bytes": source.bytes,
            "source_dtype": source.dtype,
            "working_dtype": str(WORKING_DTYPE[source.dtype]).removeprefix("torch."),
            **asdict(modes),
            "calibration": {
                "rows": wanted,
                "row_tokens": arguments.row_tokens,
                "text_sha256": sha256_file(arguments.calibration),
            },
            "torch": torch.__version__,
            "cpu_instructions": torch.backends.cpu.get_cpu_capability(),
            "seconds": round(time.monotonic() - started, 1),
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        },
    )
    _say(f"wrote {written['bytes'] / 1e6:.0f} MB in {time.monotonic() - started:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="a Hugging Face checkpoint")
    parser.add_argument("--target", type=Path, required=True, help="folder for the new checkpoint")
    parser.add_argument("--calibration", type=Path, required=True, help="a UTF-8 text")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--row-tokens", type=int, required=True)
    parser.add_argument("--activation-scales", choices=get_args(Mode), required=True)
    parser.add_argument("--fused-scales", choices=get_args(Fusion), required=True)
    parser.add_argument("--activation-scheme", choices=get_args(Scheme), required=True)
    parser.add_argument("--facts", type=Path, required=True, help="JSON file for what was done")
    try:
        run(parser.parse_args())
    except ReproquantError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
