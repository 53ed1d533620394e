"""A GGUF's quality by llama-perplexity, against a base file."""

from __future__ import annotations

import re
from pathlib import Path

from reproquant import process
from reproquant.errors import ToolError
from reproquant.quality.result import LlamaPerplexity
from reproquant.toolchain.llama_cpp import Build

RUNS = 6
NUMBER = r"\s*(\d+(?:\.\d+)?)"
STATISTICS = {
    "perplexity": rf"^Mean PPL\(Q\)\s*:{NUMBER}",
    "kld": r"^Mean    KLD:\s*(-?\d+(?:\.\d+)?)",
    "same_top_percent": rf"^Same top p:{NUMBER}",
}


def measure(gguf: Path, base: Path, tools: Build, threads: int, log: Path) -> LlamaPerplexity:
    """Score ``gguf`` on the tokens of the base file, on the CPU with a float32 KV cache.

    llama-perplexity can end well and lose the statistics that it prints last,
    so it is run until they are in the log. Raises ToolError if it fails, or
    never prints them.
    """
    command = [
        tools.binary("llama-perplexity"), "--model", gguf, "--kl-divergence", "--kl-divergence-base", base,
        "--ctx-size", 512, "--batch-size", 512, "--threads", threads, "--device", "none",
        "--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off",
    ]  # fmt: skip
    for _ in range(RUNS):
        before = log.stat().st_size if log.is_file() else 0
        process.run(command, log)
        if found := parse(log.read_bytes()[before:].decode(errors="replace")):
            return LlamaPerplexity(**found)
    raise ToolError(
        log,
        f"llama-perplexity ended {RUNS} times without its final statistics",
        "run the same command again, or take the artifact out of quality.artifacts",
    )


def parse(said: str) -> dict[str, float] | None:
    """The final statistics in llama-perplexity's output; None if one of them is missing."""
    found = {name: re.search(pattern, said, re.MULTILINE) for name, pattern in STATISTICS.items()}
    return {name: float(match[1]) for name, match in found.items() if match} if all(found.values()) else None
