"""Score one artifact against what the unquantized checkpoint predicts."""

from pathlib import Path

from reproquant import program
from reproquant.files import read_json, write_json
from reproquant.model.manifest import Manifest
from reproquant.quality.measure import Evaluator
from reproquant.quality.result import Original
from reproquant.stage import stage
from reproquant.toolchain import environments
from reproquant.toolchain.llama_cpp import Build


def main(
    study: Path,
    recipe: str,
    log: Path,
    artifact: str,
    model: Path,
    original: Path,
    environment: Path,
    weights: Path,
    output: Path,
    threads: int,
    llama_cpp: Path | None = None,
) -> None:
    inputs = dict.fromkeys([model, original, environment, weights, *([llama_cpp] if llama_cpp else [])])
    with stage("evaluate_quality", study, recipe, log, list(inputs), output, artifact=artifact) as run:
        torch = environments.provide(run.study, "fp8", run.log)
        evaluator = Evaluator(torch, Manifest.load(model), run.folder, run.log, run.tell)
        base = original.parent / Original.model_validate(read_json(original)).base
        if llama_cpp:
            found = evaluator.gguf(artifact, weights, base, Build.load(llama_cpp), threads)
        elif variant := run.study.fp8_variant(artifact):
            found = evaluator.fp8_variant(artifact, variant, base)
        elif artifact == "fp8":
            found = evaluator.fp8(Manifest.load(weights), base)
        else:
            found = evaluator.fp8_w8a16(Manifest.load(weights), base)
        write_json(run.scratch(output), found.model_dump(mode="json"))


if __name__ == "__main__":
    program.run(main)
