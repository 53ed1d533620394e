"""Score a checkpoint, layer by layer. Runs in the fp8 environment.

    python -m reproquant.quality.evaluate original --weights DIR --text FILE --chunks 4 \
        --base FILE --facts FILE
    python -m reproquant.quality.evaluate against --weights DIR --activations quantized \
        --base FILE --facts FILE

``original`` writes the base file that ``against`` reads: the tokens, and what the
unquantized model thinks of them. In memory are one layer, the hidden states of all
chunks, and at the end the output matrix with one chunk's logits. It computes on
one core, so that the figures don't depend on how many there are.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from reproquant.errors import ReproquantError
from reproquant.files import sha256_file, write_json
from reproquant.fp8 import decoder
from reproquant.fp8.calibrate import token_rows
from reproquant.fp8.progress import line
from reproquant.quality import logits
from reproquant.quality.weights import Activations, Weights


def forward(weights: Weights, chunks: Tensor) -> Iterator[Tensor]:
    """The logits [255, vocabulary] of each chunk's scored positions; ``chunks`` is [chunks, 512]."""
    angles = decoder.rotary(weights.decoder, logits.CHUNK, torch.float32)
    hidden = list(weights.embed(chunks).split(1))
    started = time.monotonic()
    for index in range(weights.decoder.layers):
        norms, project = weights.norms(index), weights.project(index)
        for chunk, state in enumerate(hidden):
            hidden[chunk] = decoder.layer(state, weights.decoder, norms, project, angles)
        _say(line(index + 1, weights.decoder.layers, (time.monotonic() - started) / (index + 1)))
    norm, output = weights.head()
    for state in hidden:
        scored = decoder.rms_norm(state[0, logits.SCORED], norm, weights.decoder.rms_norm_eps)
        yield functional.linear(scored, output)


def chunks_of(tokenizer: Path, text: Path, count: int) -> Tensor:
    """The text's first chunks, ids [count, 512]; each begins with the BOS token if the tokenizer adds one.

    Raises CalibrationError if the text is too short.
    """
    chunks = token_rows(tokenizer, text, count, logits.CHUNK, key="quality.chunks")
    added = Tokenizer.from_file(str(tokenizer)).encode("", add_special_tokens=True).ids
    if added:
        chunks[:, 0] = added[0]
    return chunks


def original(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the base file; returns the facts without divergence."""
    chunks = chunks_of(arguments.weights / "tokenizer.json", arguments.text, arguments.chunks)
    weights = Weights.load(arguments.weights, "float")
    losses = logits.write(arguments.base, chunks, weights.vocabulary, forward(weights, chunks))
    return {**_facts(chunks, losses), "text_sha256": sha256_file(arguments.text), "divergence": None}


def against(arguments: argparse.Namespace) -> dict[str, Any]:
    """Score a checkpoint against the base file."""
    base = logits.Base.open(arguments.base)
    weights = Weights.load(arguments.weights, arguments.activations)
    scores = [
        logits.score(rows, base.next(), chunk)
        for rows, chunk in zip(forward(weights, base.tokens), base.tokens, strict=True)
    ]
    kld = torch.cat([score.kld for score in scores])
    same = torch.cat([score.same_top for score in scores]).double()
    return {
        **_facts(base.tokens, [score.nll for score in scores]),
        "divergence": {
            "kld": kld.mean().item(),
            "kld_error": _error(kld),
            "kld_median": kld.median().item(),
            "kld_p99": kld.quantile(0.99).item(),
            "kld_max": kld.max().item(),
            "same_top_percent": 100 * same.mean().item(),
            "same_top_error_percent": 100 * _error(same),
        },
    }


def _facts(chunks: Tensor, losses: Sequence[Tensor]) -> dict[str, Any]:
    nll = torch.cat(list(losses))
    perplexity = nll.mean().exp().item()
    return {
        "chunks": len(chunks),
        "chunk_tokens": logits.CHUNK,
        "scored_tokens": len(nll),
        "tokens_sha256": hashlib.sha256(chunks.numpy().astype("<i4").tobytes()).hexdigest(),
        "perplexity": perplexity,
        "perplexity_error": perplexity * _error(nll),
        "torch": torch.__version__,
    }


def _error(values: Tensor) -> float:
    """The standard error of a mean."""
    return (values.std() / len(values) ** 0.5).item()


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("original", help="write the base file")
    first.add_argument("--text", type=Path, required=True, help="a UTF-8 text")
    first.add_argument("--chunks", type=int, required=True)
    first.set_defaults(run=original)
    second = commands.add_parser("against", help="score against the base file")
    second.add_argument("--activations", choices=get_args(Activations), required=True)
    second.set_defaults(run=against)
    for command in (first, second):
        command.add_argument("--weights", type=Path, required=True, help="a Hugging Face checkpoint")
        command.add_argument("--base", type=Path, required=True, help="the base file")
        command.add_argument("--facts", type=Path, required=True, help="JSON file for the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            write_json(arguments.facts, arguments.run(arguments))
    except ReproquantError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
