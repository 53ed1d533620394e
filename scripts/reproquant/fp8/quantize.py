"""Write a W8A8 checkpoint in AutoFP8's layout, layer by layer. Runs in the fp8 environment.

    python -m reproquant.fp8.quantize --source DIR --target DIR --unfinished DIR --device cpu \
        --calibration FILE --form raw --rows 16 --row-tokens 512 --activation-scales corrected \
        --fused-scales separate --activation-scheme static --facts FILE

At any time one layer's weights and one row's hidden state are in memory; the other
rows' lie on disk. When a run is killed, the same command goes on with the layer
that it was at (see ``progress``). On standard output is a line for each layer.

The result equals that of passing row after row through the whole model, because
a Linear's scale depends on its own inputs alone, and they come in the same order.

Working dtype: bfloat16 for a bfloat16 checkpoint and float32 for a float32 one,
as AutoFP8 does (mode autofp8 is bit-equal to it on one core). A float16 checkpoint is worked on in
float32: its values fit exactly, CPUs are slow at float16, and activations can
overflow it. The dtype of the tensors decides, not config.json's word. What is
not quantized is copied in the dtype that it has.

The modes stand in config.json under ``reproquant``, beside the quantization_config that
engines read. With activation scheme ``dynamic`` nothing is observed and no input scale written.

On a CPU it computes on one core. With more, torch's matrix products split their sums
otherwise, and input scales (not weights) move by up to several per cent from
one number of cores to another. A CUDA device sums otherwise too: input scales may differ;
weights and their scales should not, which ``benchmarks/fp8/devices.py`` would tell.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from reproquant.files import digest_of, write_json
from reproquant.fp8 import decoder, options
from reproquant.fp8.calibrate import ObservedLinears
from reproquant.fp8.device import described, prepared
from reproquant.fp8.facts import facts
from reproquant.fp8.progress import (
    Progress,
    in_words,
    line,
    read_states,
    states_file,
    taken_over,
    write_states,
)
from reproquant.fp8.scales import Fusion, Mode, Quantized, Scheme, quantize_together
from reproquant.fp8.shards import bytes_of, read, read_rows, write
from reproquant.fp8.source import INPUT_GROUPS, LINEARS, Source, headers

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


@dataclass(frozen=True)
class Job:
    """A checkpoint to make in the folder ``target``, of ``rows``, token ids [rows, row_tokens].

    ``unfinished`` is a folder for what a killed run is continued with.
    """

    source: Source
    target: Path
    unfinished: Path
    rows: Tensor
    modes: Modes
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in."""
        return WORKING_DTYPE[self.source.dtype]

    @property
    def digest(self) -> str:
        """Of what the result depends on besides the bytes of the weights."""
        tensors = {name: [t.dtype, t.shape, t.bytes] for name, t in self.source.tensors.items()}
        rows = hashlib.sha256(bytes_of(self.rows)).hexdigest()
        where = [torch.__version__, described(self.device)]
        return digest_of([self.source.config, tensors, rows, self.rows.shape, asdict(self.modes), where])

    def shard(self, number: int) -> str:
        """The name of a shard: 1 is the embedding, then one for each layer, then what comes after them."""
        return f"model-{number:05d}-of-{self.source.decoder.layers + 2:05d}.safetensors"

    def states(self, layer: int) -> Iterator[Tensor]:
        """The hidden states [1, row_tokens, hidden] that go into a layer, row by row, on the device."""
        count, tokens = self.rows.shape
        file = states_file(self.unfinished, layer)
        for state in read_states(file, count, (1, tokens, self.source.decoder.hidden), self.dtype):
            yield state.to(self.device)


def quantize_checkpoint(job: Job) -> int:
    """Make the checkpoint, or go on making it; returns how many layers a killed run had finished."""
    progress = taken_over(job.unfinished, job.target, job.digest)
    layers, before = job.source.decoder.layers, progress.layers
    if before:
        _say(f"going on at layer {before + 1} of {layers}")
    else:
        _start(job, progress)
    started = time.monotonic()
    for index in range(before, layers):
        _finish_layer(job, index, progress)
        _say(line(index + 1, layers, (time.monotonic() - started) / (index + 1 - before)))
    last = {name: job.source.tensors[name] for name in _after_layers(job.source)}
    write(job.target / job.shard(layers + 2), last)
    _write_index(job.target)
    _copy_companions(job.source, job.target, job.modes)
    return before


def _start(job: Job, progress: Progress) -> None:
    """Copy the embedding and look the rows up in it."""
    embedding = job.source.tensors[EMBEDDING]
    progress.shards[job.shard(1)] = write(job.target / job.shard(1), {EMBEDDING: embedding})
    found = (read_rows(embedding, row).to(job.dtype)[None] for row in job.rows)
    progress.states = write_states(states_file(job.unfinished, 0), found)
    progress.save(job.unfinished)


def _finish_layer(job: Job, index: int, progress: Progress) -> None:
    """Quantize a layer, pass all rows through it, and write what came of both."""
    tensors, observed = _quantize_layer(job, index)
    norms = {
        name: tensors[f"model.layers.{index}.{name}.weight"].to(job.device, job.dtype)
        for name in job.source.decoder.norms
    }
    angles = decoder.rotary(job.source.decoder, job.rows.shape[1], job.dtype)
    angles = angles[0].to(job.device), angles[1].to(job.device)
    passed = (
        decoder.layer(state, job.source.decoder, norms, observed, angles) for state in job.states(index)
    )
    progress.states = write_states(states_file(job.unfinished, index + 1), passed)
    for name, scale in observed.input_scales().items():
        tensors[f"model.layers.{index}.{name}.input_scale"] = scale
    shard = job.shard(index + 2)
    progress.shards[shard] = write(job.target / shard, tensors)
    progress.layers = index + 1
    progress.save(job.unfinished)


def _quantize_layer(job: Job, index: int) -> tuple[dict[str, Tensor], ObservedLinears]:
    """The layer's tensors as they are stored, still without input scales, and its Linears for calibration."""
    prefix = f"model.layers.{index}."
    stored = job.source.tensors
    quantized = {f"{prefix}{linear}.weight" for linear in LINEARS}
    tensors = {name: read(stored[name]) for name in job.source.layer(index) if name not in quantized}
    weights: dict[str, Quantized] = {}
    for group in job.modes.together:
        names = [f"{prefix}{linear}.weight" for linear in group]
        originals = [read(stored[name]).to(job.device, job.dtype) for name in names]
        weights |= zip(group, quantize_together(originals, " or ".join(names)), strict=True)
    for linear, (codes, scale) in weights.items():
        tensors[f"{prefix}{linear}.weight"] = codes
        tensors[f"{prefix}{linear}.weight_scale"] = scale
    biases = {
        name: tensors[key].to(job.device, job.dtype)
        for name in LINEARS
        if (key := f"{prefix}{name}.bias") in tensors
    }
    mode = job.modes.activation_scales
    return tensors, ObservedLinears(weights, biases, job.dtype, mode, where=f"layer {index}")


def _after_layers(source: Source) -> list[str]:
    """The final norm, lm_head unless it is tied, and whatever else stands outside the layers."""
    return sorted(
        name for name in source.tensors if not name.startswith("model.layers.") and name != EMBEDDING
    )


def _write_index(target: Path) -> None:
    tensors = headers(target)
    index = {
        "metadata": {"total_size": sum(tensor.bytes for tensor in tensors.values())},
        "weight_map": {name: tensor.file.name for name, tensor in sorted(tensors.items())},
    }
    write_json(target / "model.safetensors.index.json", index)


def _copy_companions(source: Source, target: Path, modes: Modes) -> None:
    write_json(target / "config.json", {**source.config, **modes.config()})
    for pattern in COMPANIONS:
        for file in sorted(source.directory.glob(pattern)):
            if file.name != "config.json" and not file.name.endswith(".index.json"):
                shutil.copyfile(file, target / file.name)


def _say(words: str) -> None:
    print(words, flush=True)


def quantize(arguments: argparse.Namespace) -> None:
    """Refuse what can't be done, then quantize and write the facts."""
    started = time.monotonic()
    device = prepared(arguments.device)
    source = Source.load(arguments.source)
    modes = Modes(arguments.activation_scales, arguments.fused_scales, arguments.activation_scheme)
    rows = options.observed(arguments)
    job = Job(source, arguments.target, arguments.unfinished, rows, modes, device)
    _say(
        f"quantizing {source.decoder.layers} layers, {source.bytes / 1e6:.0f} MB, {source.dtype}, on "
        f"{described(device)}; observing {len(rows)} rows of {arguments.row_tokens} tokens; "
        f"{', '.join(asdict(modes).values())}"
    )
    with torch.inference_mode():
        continued = quantize_checkpoint(job)
    made = {
        "backend": "native",
        **asdict(modes),
        "working_dtype": str(job.dtype).removeprefix("torch."),
        "device": described(device),
        "layers_of_a_killed_run": continued,
    }
    told = facts(source, job.target, options.calibration_of(arguments), rows, started)
    write_json(arguments.facts, {**told, **made})
    _say(f"wrote {told['bytes'] / 1e6:.0f} MB in {in_words(told['seconds'])}")


def main() -> None:
    parser = options.parser(__doc__.splitlines()[0])
    parser.add_argument(
        "--unfinished", type=Path, required=True, help="folder for what a killed run is continued with"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--activation-scales", choices=get_args(Mode), required=True)
    parser.add_argument("--fused-scales", choices=get_args(Fusion), required=True)
    options.run(parser, quantize)


if __name__ == "__main__":
    main()
