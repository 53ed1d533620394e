"""A target of llama.cpp compiled without ccache, with it, and again: times, and whether bytes are equal.

    python benchmarks/ccache.py [TARGET]

Needs ccache on PATH. Source and flags are the embedded study's; cache and folders
are new ones, so nothing is answered from an earlier build.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import typer

from reproquant.errors import ToolError
from reproquant.files import repository, sha256_file
from reproquant.study import Study
from reproquant.toolchain import llama_cpp
from reproquant.toolchain.cmake import Tools, find_tools

TARGET = "ggml-base"


def main(target: str = TARGET) -> None:
    study = Study.of_files([repository() / "workflow/studies/embedded.yaml"])
    tools = find_tools()
    if tools.ccache is None:
        raise SystemExit(str(ToolError("ccache", "it isn't on PATH", "apt-get install ccache")))
    with tempfile.TemporaryDirectory() as folder:
        source = llama_cpp.fetch_source(study.llama_cpp.spec, Path(folder, "fetch.log"))
        os.environ["REPROQUANT_STORE"] = folder
        work = Path(folder, "work")
        places = llama_cpp._Places(str(source.root), str(work), str(tools.c), str(tools.cxx))
        definitions = llama_cpp._definitions(study.llama_cpp, source, places)
        plain = compiled(
            replace(tools, ccache=None), source.root, work, definitions, target, "without ccache"
        )
        empty = compiled(tools, source.root, work, definitions, target, "with it, empty")
        full = compiled(tools, source.root, work, definitions, target, "with it, full")
        print(
            f"{len(plain)} objects, {'equal' if plain == empty == full else 'NOT equal'} in all three builds"
        )


def compiled(
    tools: Tools, source: Path, work: Path, definitions: list[str], target: str, name: str
) -> dict[str, str]:
    """The sha256 of each object of a target, made in an empty folder."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    tools.configure(source, work, definitions, work.with_name("build.log"))
    begin, used = time.monotonic(), os.times()
    tools.compile(work, [target], os.cpu_count() or 1, work.with_name("build.log"))
    now = os.times()
    cpu = now.children_user + now.children_system - used.children_user - used.children_system
    print(f"{name}: {time.monotonic() - begin:.1f} s, {cpu:.1f} s of CPU", flush=True)
    return {path.relative_to(work).as_posix(): sha256_file(path) for path in work.rglob("*.o")}


if __name__ == "__main__":
    typer.run(main)
