"""Read a GGUF back: its tensor types, sizes, and whether they are what its name promises."""

from pathlib import Path

from reproquant import program
from reproquant.files import write_json
from reproquant.gguf.inspect import inspect
from reproquant.stage import stage


def main(study: Path, recipe: str, log: Path, gguf: Path, type: str, output: Path) -> None:
    with stage("inspect_gguf", study, recipe, log, [gguf], output, type=type) as run:
        write_json(run.scratch(output), inspect(gguf, type))


if __name__ == "__main__":
    program.run(main)
