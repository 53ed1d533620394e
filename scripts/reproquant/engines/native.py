"""What an engine's own benchmark tool measures, one request at a time and without a server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from reproquant.errors import ToolError

SHARED_BY_LLAMA_CPP = frozenset(
    ("-fa", "--flash-attn", "-b", "--batch-size", "-ub", "--ubatch-size")
    + ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v")
)
SAMPLING = frozenset(("-bs", "--backend-sampling"))
"""Switches of llama-server for how a token is chosen, which llama-bench doesn't do."""
LOGGING = frozenset(("-lv", "--verbosity", "--log-verbosity"))
"""llama-server's arguments, with a value each, that change nothing but how much it says."""


@dataclass(frozen=True)
class NativeRun:
    """A tool, the commands that it was run with, and its repetitions' speeds in tokens a second."""

    tool: str
    commands: tuple[tuple[str, ...], ...]
    prefill_tok_per_s: tuple[float, ...]
    decode_tok_per_s: tuple[float, ...]


def shared_by_llama_cpp(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """llama-server's arguments as llama-bench takes them: those that both spell alike, without ``SAMPLING``.

    ``LOGGING`` is left out, too. Raises ToolError for one that isn't of any of these kinds: the tool would
    measure something else.
    """
    words = tuple(word for word in arguments if word not in SAMPLING)
    kept = tuple(word for at, word in enumerate(words) if words[at - at % 2] not in LOGGING)
    for name in kept[::2]:
        if name not in SHARED_BY_LLAMA_CPP:
            raise ToolError(
                "llama-bench",
                f"it doesn't know llama-server's argument {name}, so it would measure something else",
                "leave the argument out, or set benchmark.native_repetitions to 0",
            )
    return kept


def samples_of_llama_bench(log: Path, start: int) -> tuple[float, ...]:
    """Tokens a second of each repetition, from ``-o jsonl`` in the part of a log behind ``start``."""
    lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
    try:
        (test,) = (json.loads(line) for line in lines if line.startswith("{"))
        return _above_zero(test["samples_ts"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable("llama-bench", log, error) from error


def speeds_of_vllm_bench(
    first: Path, whole: Path, prompt_tokens: int, output_tokens: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Prefill and decode from the results of ``vllm bench latency`` for one and for all output tokens.

    One token is the prefill, P / T1; the others took what all of them took longer,
    (N - 1) / (TN - T1). T1 in the latter is the median.
    """
    single, all_of_them = (_latencies(path) for path in (first, whole))
    steps = tuple(latency - median(single) for latency in all_of_them)
    if min(steps) <= 0:
        raise _unreadable("vllm bench latency", whole, ValueError("more tokens took less time"))
    return (
        tuple(prompt_tokens / latency for latency in single),
        tuple((output_tokens - 1) / step for step in steps),
    )


def _latencies(path: Path) -> tuple[float, ...]:
    try:
        data: Any = json.loads(path.read_bytes())
        return _above_zero(data["latencies"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable("vllm bench latency", path, error) from error


def _above_zero(figures: Any) -> tuple[float, ...]:
    """A tool's list as numbers; raises ValueError or TypeError if it has none, or one that isn't above 0."""
    numbers = tuple(float(figure) for figure in figures)
    if not numbers or not all(number > 0 for number in numbers):
        raise ValueError(f"{list(numbers)} aren't speeds or times")
    return numbers


def _unreadable(tool: str, where: Path, error: Exception) -> ToolError:
    return ToolError(where, f"{tool} gave no figures that can be read: {error}", "see the log")
