"""The weights of a checkpoint as an engine would compute with them, one layer at a time, in float32.

What is quantized carries its error; all arithmetic is float32, so that formats
differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from reproquant.errors import FormatError
from reproquant.files import read_json
from reproquant.fp8.decoder import Project
from reproquant.fp8.scales import FP8_MAX, SMALLEST_AMAX
from reproquant.fp8.shards import read
from reproquant.fp8.source import INPUT_GROUPS, LINEARS, Decoder, StoredTensor, headers

Activations = Literal["float", "quantized"]
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True)
class Weights:
    """A checkpoint in the Hugging Face layout, plain or W8A8 in AutoFP8's.

    ``activations`` says what an FP8 checkpoint's Linears do with their inputs:
    ``quantized`` as vLLM's W8A8 kernels do, or ``float`` as its W8A16 ones.
    """

    decoder: Decoder
    tensors: Mapping[str, StoredTensor]
    tied: bool
    scheme: str | None
    activations: Activations

    @classmethod
    def load(cls, directory: Path, activations: Activations) -> Weights:
        """Read config.json and headers.

        Raises FormatError for a decoder that isn't known, and for FP8
        checkpoints other than static and dynamic ones with a scale a tensor.
        """
        where = directory / "config.json"
        config = read_json(where)
        quantization = config.pop("quantization_config", None)
        tensors = headers(directory)
        scheme = quantization and quantization.get("activation_scheme")
        scales = [f"model.layers.0.{name}.weight_scale" for name in LINEARS]
        if quantization and (
            quantization.get("quant_method") != "fp8"
            or any(name not in tensors or tensors[name].shape for name in scales)
        ):
            raise FormatError(
                where,
                "its quantization is not FP8 with one scale a tensor",
                "evaluate the checkpoint that quantize_fp8 makes",
            )
        decoder = Decoder.from_config(config, where)
        return cls(decoder, tensors, bool(config.get("tie_word_embeddings")), scheme, activations)

    def tensor(self, name: str) -> Tensor:
        """A tensor as it is stored."""
        return read(self.tensors[name])

    def embed(self, tokens: Tensor) -> Tensor:
        """The embeddings of token ids, [..., hidden]."""
        return self.tensor(EMBEDDING)[tokens].float()

    @property
    def vocabulary(self) -> int:
        return self.tensors[EMBEDDING].shape[0]

    def norms(self, layer: int) -> dict[str, Tensor]:
        return {
            name: self.tensor(f"model.layers.{layer}.{name}.weight").float() for name in self.decoder.norms
        }

    def head(self) -> tuple[Tensor, Tensor]:
        """The final norm's weight [hidden] and the output matrix [vocabulary, hidden]."""
        output = EMBEDDING if self.tied or HEAD not in self.tensors else HEAD
        return self.tensor(FINAL_NORM).float(), self.tensor(output).float()

    def project(self, layer: int) -> Project:
        """The Linears of a layer, as ``decoder.layer`` calls them."""
        prefix = f"model.layers.{layer}."
        biases = {
            name: self.tensor(bias).float()
            for name in LINEARS
            if (bias := f"{prefix}{name}.bias") in self.tensors
        }
        if self.scheme and self.activations == "quantized":
            groups = {group: self._merged(prefix, group) for group in INPUT_GROUPS}
            return lambda names, values: groups[tuple(names)](values, [biases.get(name) for name in names])
        plain = {name: self._dequantized(f"{prefix}{name}") for name in LINEARS}
        return lambda names, values: [functional.linear(values, plain[n], biases.get(n)) for n in names]

    def _dequantized(self, linear: str) -> Tensor:
        weight = self.tensor(f"{linear}.weight").float()
        return weight * self.tensor(f"{linear}.weight_scale") if self.scheme else weight

    def _merged(self, prefix: str, group: Sequence[str]) -> Merged:
        codes = [self.tensor(f"{prefix}{name}.weight") for name in group]
        scales = [self.tensor(f"{prefix}{name}.weight_scale") for name in group]
        inputs = None
        if self.scheme == "static":
            inputs = torch.stack([self.tensor(f"{prefix}{name}.input_scale") for name in group]).max()
        return Merged.of(codes, scales, inputs)


@dataclass(frozen=True)
class Merged:
    """Linears that share an input, as vLLM's W8A8 path computes them: one weight scale, quantized inputs.

    Source: vLLM 0.32, quantization/utils/w8a8_utils.py (``requantize_with_max_scale``)
    and fp8.py (static: one scale a tensor; dynamic on GPUs with CUTLASS FP8: one a token).
    """

    codes: tuple[Tensor, ...]
    scale: Tensor
    input_scale: Tensor | None

    @classmethod
    def of(cls, codes: Sequence[Tensor], scales: Sequence[Tensor], input_scale: Tensor | None) -> Merged:
        """Give all members the largest scale; what had another is rounded again, by way of float16."""
        largest = torch.stack(list(scales)).max()
        merged = [
            to_codes((part.half() * scale).float(), largest)
            for part, scale in zip(codes, scales, strict=True)
        ]
        return cls(tuple(merged), largest, input_scale)

    def __call__(self, values: Tensor, biases: Sequence[Tensor | None]) -> list[Tensor]:
        """The outputs; a product of codes is summed in float32 and scaled afterwards."""
        scale = self.input_scale
        if scale is None:
            scale = values.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_AMAX) / FP8_MAX
        seen = to_codes(values, scale)
        outputs = [functional.linear(seen, codes) * (scale * self.scale) for codes in self.codes]
        return [y if bias is None else y + bias for y, bias in zip(outputs, biases, strict=True)]


def to_codes(values: Tensor, scale: Tensor) -> Tensor:
    """The float8 codes of float32 values for a given scale, as float32; what is too large is clamped."""
    return (values / scale).clamp(min=-FP8_MAX, max=FP8_MAX).to(torch.float8_e4m3fn).float()
