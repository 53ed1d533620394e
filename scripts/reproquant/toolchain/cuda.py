"""What decides about a CUDA build besides nvcc: its host compiler, one toolkit for all, NCCL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from reproquant.errors import ToolError
from reproquant.toolchain.cmake import Cuda, first_line

HOST_LIMIT = re.compile(r"gcc versions later than (\d+) are not supported")
"""The words of the toolkit's own include/crt/host_config.h: 13 for CUDA 12.4, 14 for CUDA 12.9."""

TOOLKIT = re.compile(r"^FIND_PACKAGE_MESSAGE_DETAILS_CUDAToolkit:INTERNAL=.*\[v([\d.]+)", re.MULTILINE)
COMPILER = re.compile(r'^set\(CMAKE_CUDA_COMPILER_VERSION "([\d.]+)"\)', re.MULTILINE)
NCCL_HEADER = re.compile(r"^NCCL_INCLUDE_DIR:PATH=(/.*)$", re.MULTILINE)
NCCL_LIBRARY = re.compile(r"^NCCL_LIBRARY:FILEPATH=(/.*)$", re.MULTILINE)


def check_host_compiler(cuda: Cuda, cxx: Path) -> None:
    """Raise ToolError if ``cxx``, a g++, is newer than the newest that the toolkit's nvcc works with."""
    header = cuda.root / "include" / "crt" / "host_config.h"
    limit = HOST_LIMIT.search(header.read_text(encoding="utf-8", errors="replace"))
    version = first_line(cxx, "-dumpfullversion")
    if limit and int(version.partition(".")[0]) > int(limit.group(1)):
        newest = limit.group(1)
        raise ToolError(
            cxx,
            f"it is GCC {version}, and nvcc {cuda.version} works with GCC {newest} at most",
            f"apt-get install gcc-{newest} g++-{newest}; put links to them, named gcc and g++, first on PATH",
        )


def configured(build: Path) -> dict[str, Any]:
    """What CMake settled on in the build folder, as JSON data: ``toolkit``, ``compiler`` and ``nccl``.

    Read from what CMake keeps, because a configure step that goes on from an
    earlier one prints none of it. ``nccl`` is the release of the NCCL that is
    linked, or null: without it llama.cpp is slower on several GPUs. Raises
    ToolError if headers and libraries are of another release than the compiler.
    """
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    toolkit = _only(TOOLKIT, [cache], build)
    languages = [path.read_text() for path in (build / "CMakeFiles").glob("*/CMakeCUDACompiler.cmake")]
    compiler = _only(COMPILER, languages, build)
    if toolkit.split(".")[:2] != compiler.split(".")[:2]:
        raise ToolError(
            "CUDA",
            f"CMake found the compiler of release {compiler} and the libraries of release {toolkit}",
            "give the root of one complete toolkit as llama_cpp.cuda_toolkit",
        )
    return {"toolkit": toolkit, "compiler": compiler, "nccl": _nccl(cache)}


def _only(pattern: re.Pattern[str], texts: list[str], build: Path) -> str:
    for text in texts:
        if match := pattern.search(text):
            return match.group(1)
    raise ToolError(build, "CMake says nothing about its CUDA", "look at what the configure step printed")


def _nccl(cache: str) -> str | None:
    """The release in the nccl.h beside the library that CMake found."""
    header, library = NCCL_HEADER.search(cache), NCCL_LIBRARY.search(cache)
    if not header or not library:
        return None
    text = (Path(header.group(1)) / "nccl.h").read_text(encoding="utf-8", errors="replace")
    numbers = dict(re.findall(r"^#define NCCL_(MAJOR|MINOR|PATCH) (\d+)", text, re.MULTILINE))
    return ".".join(numbers.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH"))
