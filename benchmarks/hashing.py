"""How fast an audit reads: one file after the other against several at a time, in one run.

    python benchmarks/hashing.py FOLDER

Hashes every file below FOLDER twice and prints GB/s of each way and their
ratio. A first pass, not counted, brings the files into the page cache; so
this is the speed of sha256, which a slower disk would hide.
"""

import time
from collections.abc import Callable
from pathlib import Path

import typer

from reproquant.files import sha256_file
from reproquant.provenance.digests import Digests


def main(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    gigabytes = sum(path.stat().st_size for path in files) / 1e9
    hash_each(files)
    one, several = seconds(hash_each, files), seconds(hash_together, files)
    print(f"{len(files)} files, {gigabytes:.2f} GB")
    print(f"one at a time: {gigabytes / one:.2f} GB/s")
    print(f"several at a time: {gigabytes / several:.2f} GB/s, {one / several:.2f} x as fast")


def hash_each(files: list[Path]) -> None:
    for path in files:
        sha256_file(path)


def hash_together(files: list[Path]) -> None:
    Digests().hash_all(files, lambda done, total: None)


def seconds(way: Callable[[list[Path]], None], files: list[Path]) -> float:
    begin = time.perf_counter()
    way(files)
    return time.perf_counter() - begin


if __name__ == "__main__":
    typer.run(main)
