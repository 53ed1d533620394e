"""Calibration: rows of tokens, and one layer's Linears that watch their inputs while rows pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from reproquant.errors import ReproquantError
from reproquant.files import sha256_text
from reproquant.fp8.chat import conversations
from reproquant.fp8.scales import InputObserver, Mode, Quantized, dequantize_weight
from reproquant.fp8.source import INPUT_GROUPS

Form = Literal["raw", "chat"]


class CalibrationError(ReproquantError):
    """A text that doesn't give the rows asked for."""


@dataclass(frozen=True)
class Calibration:
    """Which rows of tokens are observed: the study's section ``fp8.calibration`` explains the values."""

    text: Path
    form: Form
    rows: int
    row_tokens: int
    seed: int | None

    def token_rows(self, checkpoint: Path) -> Tensor:
        """Token ids [rows, row_tokens].

        Raises CalibrationError if the text is too short, and what ``conversations`` does.
        """
        text = self.text.read_text(encoding="utf-8")
        written = conversations(checkpoint, text) if self.form == "chat" else text
        found = windows(checkpoint / "tokenizer.json", written, self.row_tokens)
        _refuse_too_few(found, self.rows, self.text, "fp8.calibration.rows")
        return found[drawn(len(found), self.seed)[: self.rows]]


def token_rows(tokenizer: Path, text: Path, rows: int, row_tokens: int, key: str) -> Tensor:
    """The first ``rows`` windows of a text, ids [rows, row_tokens].

    Raises CalibrationError if the text has too few tokens; ``key`` is where the
    study says how many rows.
    """
    found = windows(tokenizer, text.read_text(encoding="utf-8"), row_tokens)
    _refuse_too_few(found, rows, text, key)
    return found[:rows]


def windows(tokenizer: Path, text: str, row_tokens: int) -> Tensor:
    """All windows of a text, ids [windows, row_tokens], without special tokens that the text hasn't.

    They follow each other without overlap, so that no row needs padding (pad
    tokens would count as observations); what is left at the end is dropped.
    """
    encoded = _without_limits(Tokenizer.from_file(str(tokenizer))).encode(text, add_special_tokens=False)
    count = len(encoded.ids) // row_tokens
    return torch.tensor(encoded.ids[: count * row_tokens], dtype=torch.int64).view(count, row_tokens)


def drawn(count: int, seed: int | None) -> list[int]:
    """0..count-1 in the order that a seed gives, by sha256, or as they are without one."""
    if seed is None:
        return list(range(count))
    return sorted(range(count), key=lambda number: sha256_text(f"{seed} {number}"))


def _refuse_too_few(found: Tensor, rows: int, text: Path, key: str) -> None:
    count, row_tokens = found.shape
    if count < rows:
        raise CalibrationError(
            text,
            f"it has {count} rows of {row_tokens} tokens, and {rows} are wanted",
            f"give a longer text, or at most {count} rows ({key})",
        )


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
