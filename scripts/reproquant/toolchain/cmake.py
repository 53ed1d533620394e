"""CMake and the compilers that it is told to use: found, checked, described."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reproquant import process
from reproquant.errors import ToolError
from reproquant.files import store

# What a shell may have set and CMake, GCC or nvcc would silently act on. SOURCE_DATE_EPOCH
# turns ggml's defaults for the instruction sets off.
IGNORED_VARIABLES = (
    "SOURCE_DATE_EPOCH",
    "CFLAGS",
    "CXXFLAGS",
    "CPPFLAGS",
    "LDFLAGS",
    "CUDAFLAGS",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
)
CACHE_SETTINGS = (
    "CCACHE_BASEDIR=",
    "CCACHE_HASHDIR=true",
    "CCACHE_SLOPPINESS=",
    "CCACHE_COMPILERCHECK=content",
)
"""A cached object is the one that the compiler would make: no path is rewritten (that reaches the bytes, as
__FILE__), none is left out of the key, nothing is overlooked, and a compiler is known by its own bytes."""
PROBE_TIMEOUT_S = 60


@dataclass(frozen=True)
class Cuda:
    """One CUDA toolkit: its root folder, and the release of its nvcc, such as 12.4.131."""

    root: Path
    version: str


@dataclass(frozen=True)
class Tools:
    """The programs that a build runs."""

    cmake: Path
    ninja: Path
    c: Path
    cxx: Path
    cuda: Cuda | None = None
    ccache: Path | None = None

    def compilers(self) -> dict[str, str]:
        """The versions that the bytes depend on."""
        versions = {"c": first_line(self.c, "--version"), "cxx": first_line(self.cxx, "--version")}
        return {**versions, "cuda": self.cuda.version} if self.cuda else versions

    def builders(self) -> dict[str, str]:
        """The versions of what only orders the work, for the record."""
        programs = {"cmake": self.cmake, "ninja": self.ninja, "ccache": self.ccache}
        return {name: first_line(program, "--version") for name, program in programs.items() if program}

    def configure(self, source: Path, build: Path, definitions: Sequence[str], log: Path) -> None:
        """Run CMake's configure step; raises ToolError with its last lines."""
        given = [*definitions, *self._launchers()]
        self._run(["-G", "Ninja", "-S", source, "-B", build, *(f"-D{item}" for item in given)], log)

    def compile(self, build: Path, targets: Sequence[str], threads: int, log: Path) -> None:
        """Build ``targets``; what an earlier, interrupted run finished is kept."""
        words = ["--build", build, "--parallel", threads, "--target", *targets]
        self._run(words, log)

    def _launchers(self) -> list[str]:
        """ccache before each compiler, if there is one; the objects are the same with it and without."""
        languages = ("C", "CXX", "CUDA") if self.cuda else ("C", "CXX")
        return [f"CMAKE_{name}_COMPILER_LAUNCHER={self.ccache}" for name in languages if self.ccache]

    def _run(self, words: Sequence[object], log: Path) -> None:
        """CMake, without what would change the build behind its back.

        GIT_DIR: ggml's CMake asks git itself, and would report the commit of any
        repository that happens to lie around the source.
        """
        foreign = [name for name in os.environ if name.startswith("CCACHE_")]
        unset = [f"--unset={name}" for name in (*IGNORED_VARIABLES, *foreign)]
        cache = [f"CCACHE_DIR={store() / 'ccache'}", *CACHE_SETTINGS] if self.ccache else []
        clean = [self.cmake, "-E", "env", *unset, "GIT_DIR=/nonexistent", *cache]
        process.run([*clean, self.cmake, *words], log, _path())


def find_tools(cuda: Cuda | None = None) -> Tools:
    """The programs of a build: beside this Python first, then on PATH; ccache may be missing.

    CMake and Ninja are wheels of the main environment, so their versions are
    pinned with it. Raises ToolError that names the one that is missing.
    """
    return Tools(
        cmake=_find("cmake", "apt-get install cmake"),
        ninja=_find("ninja", "apt-get install ninja-build"),
        c=_find("gcc", "apt-get install gcc"),
        cxx=_find("g++", "apt-get install g++"),
        cuda=cuda,
        ccache=Path(found) if (found := shutil.which("ccache", path=_path()["PATH"])) else None,
    )


def find_cuda(toolkit: str | None, architectures: Sequence[int]) -> Cuda:
    """The CUDA toolkit at the root ``toolkit``, or the one whose nvcc is on PATH.

    Raises ToolError before anything is configured if there is none, if its nvcc
    can't make machine code for one of ``architectures`` (70 is sm_70), or if
    nvcc stands alone: CMake would then take the libraries of another CUDA.
    """
    nvcc = Path(toolkit) / "bin" / "nvcc" if toolkit else Path(shutil.which("nvcc") or "nvcc")
    remedy = "give the root of a CUDA toolkit that can as llama_cpp.cuda_toolkit" + _advice(architectures)
    if not nvcc.is_file():
        raise ToolError(nvcc, "there is no such CUDA compiler, and backend 'cuda' needs one", remedy)
    version = _release(nvcc)
    listed = _probe(nvcc, "--list-gpu-code").split()
    for architecture in architectures:
        if f"sm_{architecture}" not in listed:
            raise ToolError(
                nvcc,
                f"nvcc {version} can't make machine code for sm_{architecture}; it lists {', '.join(listed)}",
                remedy,
            )
    root = nvcc.resolve().parent.parent
    if not (root / "include" / "cuda_runtime.h").is_file():
        raise ToolError(nvcc, f"it stands alone: there is no include/cuda_runtime.h in {root}", remedy)
    return Cuda(root=root, version=version)


def first_line(program: Path, *arguments: str) -> str:
    """The first line that a program prints, for its version."""
    return _probe(program, *arguments).splitlines()[0]


def _advice(architectures: Sequence[int]) -> str:
    """CUDA 13 dropped everything before sm_75 (release notes of 13.0)."""
    return "; sm_70 needs CUDA >= 12.0 and < 13" if min(architectures, default=75) < 75 else ""


def _release(nvcc: Path) -> str:
    match = re.search(r"\bV(\d+\.\d+\.\d+)", _probe(nvcc, "--version"))
    if not match:
        raise ToolError(
            nvcc, "it doesn't say its release", "give the root of a CUDA toolkit as llama_cpp.cuda_toolkit"
        )
    return match.group(1)


def _probe(program: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=True, timeout=PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolError(
            program, f"it doesn't answer {' '.join(arguments)}: {error}", "repair its installation"
        ) from error
    return answer.stdout


def _find(name: str, remedy: str) -> Path:
    found = shutil.which(name, path=_path()["PATH"])
    if not found:
        raise ToolError(name, "the build of llama.cpp needs it, and it is not on PATH", remedy)
    return Path(found)


def _path() -> dict[str, str]:
    return {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])}
