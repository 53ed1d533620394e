"""Whether the FP8 writer's memory depends on how many layers a model has.

    python benchmarks/fp8/depth.py [--preset qwen2.5-7b] [--layers 2 8] [--rows 4] [--row-tokens 512]

Models with a preset's shape, random weights and few layers, one after another in the temporary folder
(a layer of the 7B shape takes 0.5 GB, what isn't in layers 2.2 GB); each is written as W8A8 and thrown away.
Prints the peak memory of each and the ratio of the last to the first.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from programs import HEAD, in_scratch, make_model, run, write_text, writer

from reproquant.toolchain import python_env


def benchmark(arguments: argparse.Namespace, scratch: Path) -> None:
    log = scratch / "log"
    log.touch()
    python = python_env.ensure("fp8", log).python
    text = write_text(scratch / "text.txt")
    print(HEAD)
    peaks = []
    for layers in arguments.layers:
        with TemporaryDirectory(dir=scratch) as folder:
            source, target = Path(folder, "source"), Path(folder, "fp8")
            make_model(arguments.preset, layers, source)
            command = writer(python, source, text, arguments.rows, arguments.row_tokens, target)
            cost = run(command, Path(folder, "log"))
        print(f"{layers:>9} layers {cost}", flush=True)
        peaks.append(cost.peak_rss_bytes)
    print(f"peak memory, {arguments.layers[-1]} layers to {arguments.layers[0]}: {peaks[-1] / peaks[0]:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="qwen2.5-7b")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--row-tokens", type=int, default=512)
    in_scratch(benchmark, parser.parse_args())


if __name__ == "__main__":
    main()
