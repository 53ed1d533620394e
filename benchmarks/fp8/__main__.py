"""Our FP8 writer and AutoFP8 on the same seeded model and calibration, one core each: cost and equality.

    python benchmarks/fp8 [--autofp8 DIR] [--layers 24] [--rows 16] [--row-tokens 512] [--only reproquant]

The model has Qwen2.5-0.5B's shape and random weights. AutoFP8 is fetched from git at commit 505a7ed and
thrown away afterwards; where git can't reach it, --autofp8 names a checkout of that commit. Prints CPU
seconds, wall seconds and peak memory of each, their ratios, and how many tensors are the same to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from reproquant.errors import DownloadError, FormatError, ReproquantError, ToolError  # noqa: E402
from reproquant.model import synthetic  # noqa: E402
from reproquant.study import SdistSource, SyntheticModel  # noqa: E402
from reproquant.toolchain import python_env  # noqa: E402
from reproquant.toolchain.llama_cpp import fetch_source  # noqa: E402

REPOSITORY = "https://github.com/neuralmagic/AutoFP8"
COMMIT = "505a7edadf3f360a06aedc0735644ee507dceb8f"
PRESET = "qwen2.5-0.5b"
TEXTS = ("calibration.txt", "evaluation.txt")


@dataclass(frozen=True)
class Cost:
    """What a program took."""

    cpu_s: float
    wall_s: float
    peak_rss_bytes: int


def run(command: list[object], log: Path) -> Cost:
    """Run a program on one core to its end; raises ToolError that names its log."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        _, status, used = os.wait4(process.pid, 0)
    if status:
        process.returncode = os.waitstatus_to_exitcode(status)
        said = log.read_text(errors="replace").splitlines()[-5:]
        raise ToolError(command[0], "\n".join(said), "see what it says above")
    process.returncode = 0
    return Cost(used.ru_utime + used.ru_stime, time.monotonic() - started, used.ru_maxrss * 1024)


def autofp8_source(given: Path | None, scratch: Path) -> Path:
    """A checkout of AutoFP8 at the commit; raises DownloadError or FormatError if there is none."""
    folder = given or scratch / "AutoFP8"
    if not given:
        for words in (
            ["clone", "--quiet", REPOSITORY, folder],
            ["-C", folder, "checkout", "--quiet", COMMIT],
        ):
            if subprocess.run(["git", *map(str, words)], check=False).returncode:
                raise DownloadError(
                    REPOSITORY, f"git could not fetch commit {COMMIT[:7]}", "name a checkout with --autofp8"
                )
    said = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    if said.stdout.strip() != COMMIT:
        raise FormatError(folder, f"it is no checkout of AutoFP8 at {COMMIT[:7]}", f"git checkout {COMMIT}")
    return folder


def make_model(layers: int | None, target: Path, log: Path) -> None:
    shape = synthetic.preset(PRESET)
    if layers:
        shape = shape.model_copy(update={"num_hidden_layers": layers})
    embedded = yaml.safe_load((ROOT / "workflow/studies/embedded.yaml").read_text())
    source = fetch_source(SdistSource(**embedded["llama_cpp"]["sdist"]), log)
    synthetic.make(SyntheticModel(seed=0, shape=shape), source.root / "models/ggml-vocab-qwen2.gguf", target)


def tensors(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Type and bytes of every tensor of a checkpoint."""
    found = {}
    for file in folder.glob("*.safetensors"):
        content = memoryview(file.read_bytes())
        (length,) = struct.unpack("<Q", content[:8])
        for name, entry in json.loads(bytes(content[8 : 8 + length])).items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                found[name] = entry["dtype"], bytes(content[8 + length + first : 8 + length + last])
    return found


def compare(ours: Path, theirs: Path) -> None:
    """Print how many tensors of each kind are the same."""
    own, other = tensors(ours), tensors(theirs)
    for kind in ("weight_scale", "input_scale", "weight", "bias"):
        names = [name for name in own if name.endswith(f".{kind}") and name in other]
        same = sum(own[name] == other[name] for name in names)
        print(f"  the same to the bit: {same} of {len(names)} x {kind}")
    print(f"  tensors that only one has: {', '.join(sorted(own.keys() ^ other.keys())) or 'none'}")


def benchmark(arguments: argparse.Namespace, scratch: Path) -> None:
    log, model, text = scratch / "log", scratch / "model", scratch / "text.txt"
    log.touch()
    ours_python = python_env.ensure("fp8", log).python
    their_python = python_env.ensure("converter", log).python
    make_model(arguments.layers, model, log)
    written = "".join((ROOT / "workflow/data" / name).read_text(encoding="utf-8") for name in TEXTS)
    text.write_text(written * 4, encoding="utf-8")
    options = ["--calibration", text, "--rows", arguments.rows, "--row-tokens", arguments.row_tokens]
    modes = ["--activation-scales", "autofp8", "--fused-scales", "separate", "--activation-scheme", "static"]
    paths = {name: scratch / name for name in ("reproquant", "autofp8")}
    commands: dict[str, list[object]] = {
        "reproquant": [ours_python, "-m", "reproquant.fp8.quantize", "--source", model, *options, *modes,
                       "--target", paths["reproquant"], "--facts", scratch / "facts.json"],
        "autofp8": [their_python, Path(__file__).with_name("run_autofp8.py"), "--source", model, *options,
                    "--target", paths["autofp8"]],
    }  # fmt: skip
    if arguments.only:
        commands = {arguments.only: commands[arguments.only]}
    if "autofp8" in commands:
        commands["autofp8"] += ["--autofp8", autofp8_source(arguments.autofp8, scratch)]
    print(f"{'':>12} {'CPU, s':>9} {'wall, s':>9} {'peak, GB':>9}")
    costs = {}
    for name, command in commands.items():
        costs[name] = cost = run(command, scratch / f"{name}.log")
        print(f"{name:>12} {cost.cpu_s:9.1f} {cost.wall_s:9.1f} {cost.peak_rss_bytes / 1e9:9.2f}", flush=True)
    if len(costs) == 2:
        own, other = costs["reproquant"], costs["autofp8"]
        ratios = (
            own.cpu_s / other.cpu_s,
            own.wall_s / other.wall_s,
            own.peak_rss_bytes / other.peak_rss_bytes,
        )
        print(f"{'ratio':>12} " + " ".join(f"{ratio:9.2f}" for ratio in ratios))
        compare(paths["reproquant"], paths["autofp8"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--autofp8", type=Path, help=f"a checkout of {REPOSITORY} at {COMMIT[:7]}")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--row-tokens", type=int, default=512)
    parser.add_argument("--only", choices=("reproquant", "autofp8"))
    try:
        with TemporaryDirectory() as scratch:
            benchmark(parser.parse_args(), Path(scratch))
    except ReproquantError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
