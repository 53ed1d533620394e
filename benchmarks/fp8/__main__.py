"""Our FP8 writer, AutoFP8 and llm-compressor on the same seeded model and calibration: cost and equality.

    python benchmarks/fp8 [--autofp8 DIR] [--layers 24] [--rows 16] [--row-tokens 512] [--only NAME ...]

One core each. The model has Qwen2.5-0.5B's shape and random weights. AutoFP8 is fetched from git at commit
505a7ed into the store; where git can't reach it, --autofp8 names a checkout of that commit.
Prints CPU seconds, wall seconds and peak memory of each, ours as a share of theirs, and what of the outputs
is the same to the bit or how far apart.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from comparison import compare
from programs import HEAD, Cost, in_scratch, make_model, run, write_text, writer

from reproquant.fp8 import layouts
from reproquant.study import Fp8
from reproquant.toolchain import autofp8, python_env

REPOSITORY = Fp8.model_fields["autofp8_repository"].default
PRESET = "qwen2.5-0.5b"
PROGRAMS = ("reproquant", "autofp8", "llm-compressor")


def commands(
    arguments: argparse.Namespace, scratch: Path, model: Path, text: Path
) -> dict[str, list[object]]:
    """The programs that were asked for."""
    here, log = Path(__file__).parent, scratch / "log"
    common = ["--source", model, "--calibration", text]
    common += ["--rows", arguments.rows, "--row-tokens", arguments.row_tokens]
    found: dict[str, list[object]] = {}
    if "reproquant" in arguments.only:
        python = python_env.ensure("fp8", log).python
        target = scratch / "reproquant"
        found["reproquant"] = writer(python, model, text, arguments.rows, arguments.row_tokens, target)
    if "autofp8" in arguments.only:
        python = python_env.ensure("converter", log).python
        source = arguments.autofp8 or autofp8.checkout(REPOSITORY, log)
        autofp8.confirm(source)
        found["autofp8"] = [python, "-m", "reproquant.fp8.autofp8", *common, "--autofp8", source]
        found["autofp8"] += ["--form", "raw", "--activation-scheme", "static"]
        found["autofp8"] += ["--target", scratch / "autofp8", "--facts", scratch / "autofp8.json"]
    if "llm-compressor" in arguments.only:
        python = python_env.ensure("llm-compressor", log).python
        found["llm-compressor"] = [python, here / "run_llm_compressor.py", *common]
        found["llm-compressor"] += ["--target", scratch / "llm-compressor"]
    return found


def benchmark(arguments: argparse.Namespace, scratch: Path) -> None:
    log, model = scratch / "log", scratch / "model"
    log.touch()
    make_model(PRESET, arguments.layers, model)
    programs = commands(arguments, scratch, model, write_text(scratch / "text.txt"))
    print(HEAD)
    costs: dict[str, Cost] = {}
    for name, command in programs.items():
        costs[name] = run(command, scratch / f"{name}.log")
        print(f"{name:>16} {costs[name]}", flush=True)
    own = costs.pop("reproquant", None)
    for name, other in costs.items() if own else ():
        theirs = scratch / name
        if name == "llm-compressor":
            theirs = scratch / "llm-compressor-as-fp8"
            layouts.rewrite(scratch / name, theirs, "fp8")
        print(
            f"reproquant to {name}: {own.cpu_s / other.cpu_s:.2f} of its CPU seconds, "
            f"{own.wall_s / other.wall_s:.2f} of its time, "
            f"{own.peak_rss_bytes / other.peak_rss_bytes:.2f} of its peak memory"
        )
        compare(scratch / "reproquant", theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--autofp8", type=Path, help=f"a checkout of {REPOSITORY} at {autofp8.COMMIT[:7]}")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--row-tokens", type=int, default=512)
    parser.add_argument("--only", choices=PROGRAMS, nargs="+", default=PROGRAMS)
    in_scratch(benchmark, parser.parse_args())


if __name__ == "__main__":
    main()
