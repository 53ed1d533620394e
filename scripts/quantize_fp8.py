"""Write the W8A8 checkpoint in AutoFP8's layout."""

from pathlib import Path

from reproquant import program
from reproquant.files import write_json
from reproquant.fp8 import checkpoint
from reproquant.model import manifest
from reproquant.stage import stage
from reproquant.toolchain import environments


def main(
    study: Path, recipe: str, log: Path, model: Path, environment: Path, output: Path, facts: Path
) -> None:
    with stage("quantize_fp8", study, recipe, log, [model, environment], output) as run:
        original = manifest.Manifest.load(model)
        target, unfinished = run.scratch(output.parent / "checkpoint"), run.unfinished()
        torch = environments.provide(run.study, run.study.fp8_role, run.log)
        done = checkpoint.make(
            original,
            run.study.fp8,
            torch,
            unfinished / "checkpoint",
            unfinished / "progress",
            run.log,
            run.tell,
        )
        (unfinished / "checkpoint").rename(target)
        write_json(run.scratch(facts), done)
        source = {**original.source, "quantized": "W8A8 in AutoFP8's layout"}
        manifest.write(target, run.scratch(output), original.name, source)


if __name__ == "__main__":
    program.run(main)
