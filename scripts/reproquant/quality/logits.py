"""llama-perplexity's file of a base model's log-probabilities, and the scores against it.

Format and formulas: llama.cpp, tools/perplexity/perplexity.cpp (``log_softmax``,
``kl_divergence``). The file is ``_logits_``, int32 tokens a chunk, vocabulary and
chunks, the tokens, then a row of uint16 for each scored position: float32 scale,
float32 smallest log-probability, a code for each token of the vocabulary, and
one of padding where that is odd. Log-probabilities are cut at 16 below the
largest logit. Since the file holds the tokens, every engine that reads it scores
the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy
import torch
from torch import Tensor

from reproquant.errors import FormatError

MAGIC = b"_logits_"
CHUNK = 512
SCORED = slice(CHUNK // 2, CHUNK - 1)
"""The positions of a chunk whose next token is scored: 256 to 510, so each has 256 tokens before it."""
CUT = 16.0
LARGEST_CODE = 65535


class Scores(NamedTuple):
    """Of each scored position of a chunk, [255]: -log p(next token), KL divergence, same likeliest token."""

    nll: Tensor
    kld: Tensor
    same_top: Tensor


@dataclass(frozen=True)
class Base:
    """An open base file, read chunk by chunk; ``tokens`` is [chunks, 512]."""

    file: BinaryIO
    vocabulary: int
    tokens: Tensor

    @classmethod
    def open(cls, path: Path) -> Base:
        """Raises FormatError if it is no such file or its chunks aren't of 512 tokens."""
        file = path.open("rb")
        size, vocabulary, chunks = (0, 0, 0)
        if file.read(len(MAGIC)) == MAGIC:
            size, vocabulary, chunks = numpy.fromfile(file, "<i4", 3).tolist()
        if size != CHUNK:
            raise FormatError(
                path,
                f"it holds no log-probabilities in chunks of {CHUNK} tokens",
                "run the workflow again: evaluate_original makes it",
            )
        tokens = numpy.fromfile(file, "<i4", chunks * CHUNK).reshape(chunks, CHUNK)
        return cls(file, vocabulary, torch.from_numpy(tokens.astype(numpy.int64)))

    def next(self) -> Tensor:
        """The log-probabilities of the next chunk's scored positions, [255, vocabulary]."""
        rows = SCORED.stop - SCORED.start
        words = numpy.fromfile(self.file, "<u2", rows * _row_words(self.vocabulary))
        return _unpack(words.reshape(rows, -1), self.vocabulary)


def write(path: Path, tokens: Tensor, vocabulary: int, logits: Iterable[Tensor]) -> list[Tensor]:
    """Write a base file; ``logits`` gives [255, vocabulary] for each chunk. Returns their -log p [255]."""
    losses = []
    with path.open("wb") as file:
        file.write(MAGIC)
        numpy.array([CHUNK, vocabulary, len(tokens)], "<i4").tofile(file)
        tokens.numpy().astype("<i4").tofile(file)
        for chunk, rows in zip(tokens, logits, strict=True):
            _pack(rows).tofile(file)
            losses.append(_loss(rows, chunk))
    return losses


def score(logits: Tensor, base: Tensor, chunk: Tensor) -> Scores:
    """A chunk's logits [255, vocabulary] against the base's log-probabilities of the same positions.

    The divergence adds up what the base gives more than exp(-16), as llama-perplexity does. Sums over the
    vocabulary are in float64: in float32 they are off by about 1e-5, always to the same side.
    """
    log_p = logits.double().log_softmax(-1)
    terms = base.exp() * (base - log_p)
    kld = torch.where(base > -CUT, terms, 0.0).sum(-1)
    return Scores(_loss(logits, chunk), kld, logits.argmax(-1) == base.argmax(-1))


def _loss(logits: Tensor, chunk: Tensor) -> Tensor:
    """-log p of each scored position's next token, [255], in float64."""
    targets = chunk[SCORED.start + 1 : SCORED.stop + 1]
    return torch.nn.functional.cross_entropy(logits.double(), targets, reduction="none")


def _row_words(vocabulary: int) -> int:
    return 2 * ((vocabulary + 1) // 2) + 4


def _pack(logits: Tensor) -> numpy.ndarray:
    """The file's rows [rows, words] of logits [rows, vocabulary]."""
    largest = logits.amax(-1, keepdim=True)
    smallest = torch.maximum(logits.amin(-1, keepdim=True), largest - CUT)
    scale = (largest - smallest) / LARGEST_CODE
    least = (smallest - logits.double().logsumexp(-1, keepdim=True)).float()
    codes = ((logits - smallest) / scale.clamp(min=1e-30)).clamp(min=0).round()
    rows = numpy.zeros((len(logits), _row_words(logits.shape[1])), "<u2")
    rows[:, :4] = torch.cat((scale, least), dim=1).numpy().astype("<f4").view("<u2")
    rows[:, 4 : 4 + logits.shape[1]] = codes.numpy().astype("<u2")
    return rows


def _unpack(rows: numpy.ndarray, vocabulary: int) -> Tensor:
    scale, least = torch.from_numpy(rows[:, :4].copy().view("<f4")).unbind(1)
    codes = torch.from_numpy(rows[:, 4 : 4 + vocabulary].astype(numpy.float32))
    return codes * scale[:, None] + least[:, None]
