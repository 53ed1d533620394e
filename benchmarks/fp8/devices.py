"""Whether an FP8 checkpoint that is made on a GPU has the codes and scales of one that is made on the CPU.

    python benchmarks/fp8/devices.py --python PATH [--preset qwen2.5-7b] [--layers 1] [--rows 4]

PATH is a Python with a CUDA build of torch and what the FP8 quantizer needs (docs/runtimes.md). A model with
a preset's shape, random weights and few layers is written twice, once on each device.
Prints what each took, and what of the two is the same to the bit or how far apart.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from comparison import compare
from programs import HEAD, in_scratch, make_model, run, write_text, writer


def benchmark(arguments: argparse.Namespace, scratch: Path) -> None:
    source, text = scratch / "source", write_text(scratch / "text.txt")
    make_model(arguments.preset, arguments.layers, source)
    print(HEAD)
    for device in ("cpu", "cuda"):
        rows = arguments.rows, arguments.row_tokens
        command = writer(arguments.python.absolute(), source, text, *rows, scratch / device, device)
        print(f"{device:>16} {run(command, scratch / 'log')}", flush=True)
    compare(scratch / "cuda", scratch / "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--preset", default="qwen2.5-7b")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--row-tokens", type=int, default=512)
    in_scratch(benchmark, parser.parse_args())


if __name__ == "__main__":
    main()
