"""Score the unquantized checkpoint, and keep what it predicts for the comparison."""

from pathlib import Path

from reproquant import program
from reproquant.files import write_json
from reproquant.model.manifest import Manifest
from reproquant.quality.measure import Evaluator
from reproquant.stage import stage
from reproquant.toolchain import environments


def main(study: Path, recipe: str, log: Path, model: Path, environment: Path, output: Path) -> None:
    with stage("evaluate_original", study, recipe, log, [model, environment], output) as run:
        torch = environments.provide(run.study, "fp8", run.log)
        evaluator = Evaluator(torch, Manifest.load(model), run.folder, run.log, run.tell)
        found = evaluator.original(run.study.quality, run.scratch(output.parent / "original"))
        write_json(run.scratch(output), found.model_dump(mode="json"))


if __name__ == "__main__":
    program.run(main)
