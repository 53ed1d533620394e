"""A quantized GGUF out of the f16 one, by llama.cpp's own quantizer."""

from __future__ import annotations

from pathlib import Path

from reproquant import process
from reproquant.gguf.inspect import require_type
from reproquant.toolchain.llama_cpp import Build


def quantize(f16: Path, target: Path, type: str, tools: Build, threads: int, log: Path) -> None:
    """Write ``f16`` as ``target`` in llama.cpp's quantization ``type``, without an importance matrix.

    The number of threads doesn't change the bytes. Raises ToolError with
    llama-quantize's own last lines if it fails, and FormatError if ``f16`` is
    not an f16 GGUF or the file that was left is not a GGUF of that type.
    """
    require_type(f16, "f16")
    process.run([tools.binary("llama-quantize"), f16, target, type, threads], log)
    require_type(target, type)
