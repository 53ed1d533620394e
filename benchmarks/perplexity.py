"""Whether this project's evaluator and llama-perplexity agree on an unquantized model in float32.

    python benchmarks/perplexity.py results/embedded

Takes a finished study's checkpoint, evaluation of the original and llama.cpp. The checkpoint is converted to
a float32 GGUF, which llama-perplexity scores on the same tokens, and thrown away. Prints both perplexities,
how far apart they are, and llama-perplexity's divergence from the evaluator's predictions.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from reproquant.files import read_json
from reproquant.model.manifest import Manifest
from reproquant.quality import llama_perplexity
from reproquant.quality.result import Original
from reproquant.study import Study
from reproquant.toolchain import environments
from reproquant.toolchain.llama_cpp import Build, fetch_source


def compare(results: Path, scratch: Path) -> None:
    study, log, gguf = Study.load(results / "study.json"), scratch / "log", scratch / "f32.gguf"
    log.touch()
    checkpoint = Manifest.load(results / "model/manifest.json").directory
    tree = fetch_source(study.llama_cpp.spec, log)
    words = [tree.root / "convert_hf_to_gguf.py", checkpoint, "--outtype", "f32", "--outfile", gguf]
    variables = {"PYTHONPATH": str(tree.root / "gguf-py"), "PYTHONDONTWRITEBYTECODE": "1"}
    environments.provide(study, "converter", log).run(words, log, variables)
    own = Original.model_validate(read_json(results / "quality/checkpoint.json"))
    build = Build.load(results / "llama_cpp/build.json")
    base = results / "quality" / own.base
    other = llama_perplexity.measure(gguf, base, build, len(os.sched_getaffinity(0)), log)
    print(f"evaluator        {own.perplexity:.6f} ({own.chunks} chunks)")
    print(f"llama-perplexity {other.perplexity:.6f}")
    print(f"apart by         {abs(other.perplexity / own.perplexity - 1):.1e} of it")
    print(f"divergence       {other.kld:.1e} nat")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="results/STUDY, with its quality evaluated")
    with TemporaryDirectory() as scratch:
        compare(parser.parse_args().results, Path(scratch))


if __name__ == "__main__":
    main()
