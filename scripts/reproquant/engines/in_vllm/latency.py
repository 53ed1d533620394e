"""vLLM's own ``bench latency`` for several output lengths on one engine, whose start takes the longest.

Run as a program by vLLM's Python, which need not know this project:

    python latency.py 1,128 FOLDER --model DIR ... (arguments of vllm bench latency)

Each length is one run of the tool, which writes FOLDER/LENGTH.json. From the second on it
is handed the engine that the first one has started; nothing else about it is changed.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from typing import Any

import vllm

TOOL = "vllm.entrypoints.cli.main"


class OneEngine:
    """Stands for ``vllm.LLM``: the first call starts the engine, the others get the same."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._engine: Any = None

    def __call__(self, *words: Any, **settings: Any) -> Any:
        return self._started(self._kind, words, settings)

    def from_engine_args(self, *words: Any, **settings: Any) -> Any:
        return self._started(self._kind.from_engine_args, words, settings)

    def _started(self, start: Callable[..., Any], words: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        if self._engine is None:
            self._engine = start(*words, **settings)
        return self._engine


def main() -> None:
    lengths, folder, *arguments = sys.argv[1:]
    vllm.LLM = OneEngine(vllm.LLM)
    for length in lengths.split(","):
        asked = ["--output-len", length, "--output-json", f"{folder}/{length}.json"]
        sys.argv = ["vllm", "bench", "latency", *arguments, *asked]
        runpy.run_module(TOOL, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
