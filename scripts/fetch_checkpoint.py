"""Bring a checkpoint that somebody else has quantized into the study, with a manifest."""

from pathlib import Path

from reproquant import program
from reproquant.model import manifest, sources
from reproquant.stage import stage


def main(study: Path, recipe: str, log: Path, checkpoint: str, output: Path) -> None:
    with stage("fetch_checkpoint", study, recipe, log, [], output, checkpoint=checkpoint) as run:
        folder = run.scratch(output.parent / "checkpoint")
        source = sources.fetch(run.study.checkpoints[checkpoint], folder, log, run.tell)
        manifest.write(folder, run.scratch(output), checkpoint, source)


if __name__ == "__main__":
    program.run(main)
