"""Calibration: rows of tokens, and one layer's Linears that watch their inputs while rows pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from reproquant.errors import ReproquantError
from reproquant.fp8.scales import InputObserver, Mode, Quantized, dequantize_weight
from reproquant.fp8.source import INPUT_GROUPS


class CalibrationError(ReproquantError):
    """A text that doesn't give the rows asked for."""


def token_rows(
    tokenizer: Path, text: Path, rows: int, row_tokens: int, key: str = "fp8.calibration.rows"
) -> Tensor:
    """The first ``rows`` windows of the text, ids [rows, row_tokens], without special tokens.

    The windows follow each other without overlap, so that no row needs padding
    (pad tokens would count as observations). Raises CalibrationError if the
    text has too few tokens; ``key`` is where the study says how many rows.
    """
    ids = (
        _without_limits(Tokenizer.from_file(str(tokenizer)))
        .encode(text.read_text(encoding="utf-8"), add_special_tokens=False)
        .ids
    )
    if len(ids) < rows * row_tokens:
        raise CalibrationError(
            text,
            f"it has {len(ids)} tokens; {rows} rows of {row_tokens} need {rows * row_tokens}",
            f"give a longer text, or at most {len(ids) // row_tokens} rows ({key})",
        )
    return torch.tensor(ids[: rows * row_tokens]).view(rows, row_tokens)


def _without_limits(tokenizer: Tokenizer) -> Tokenizer:
    """Some tokenizer.json files carry a truncation or padding that would cut the text."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class ObservedLinears:
    """A layer's quantized Linears as ``decoder.layer`` calls them, with an observer on each input.

    Linears that share an input (q, k, v; gate, up) share its observer: they
    would see the same rows and come to the same scale.
    """

    def __init__(
        self,
        weights: Mapping[str, Quantized],
        biases: Mapping[str, Tensor],
        dtype: torch.dtype,
        mode: Mode,
        where: str,
    ) -> None:
        self.weights = {name: dequantize_weight(weight, dtype) for name, weight in weights.items()}
        self.biases = biases
        self.where = where
        self.observers = {group: InputObserver(mode) for group in INPUT_GROUPS}

    def __call__(self, names: Sequence[str], values: Tensor) -> list[Tensor]:
        seen = self.observers[tuple(names)](values, f"{self.where}: the input of {names[0]}")
        return [functional.linear(seen, self.weights[name], self.biases.get(name)) for name in names]

    def input_scales(self) -> dict[str, Tensor]:
        """The scale of every Linear's input (float32, 0-dim) over the rows seen so far."""
        return {
            name: observer.scale.clone()
            for group, observer in self.observers.items()
            for name in group
            if observer.scale is not None
        }
