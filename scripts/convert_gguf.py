"""Convert the checkpoint to an f16 GGUF with llama.cpp's own converter."""

from pathlib import Path

from reproquant import program
from reproquant.gguf.convert import convert
from reproquant.model.manifest import Manifest
from reproquant.stage import stage
from reproquant.toolchain import environments
from reproquant.toolchain.llama_cpp import fetch_source


def main(
    study: Path, recipe: str, log: Path, model: Path, source: Path, environment: Path, output: Path
) -> None:
    with stage("convert_gguf", study, recipe, log, [model, source, environment], output) as run:
        tree = fetch_source(run.study.llama_cpp.spec, run.log)
        converter = environments.provide(run.study, "converter", run.log)
        convert(Manifest.load(model), tree, converter, run.scratch(output), run.log)


if __name__ == "__main__":
    program.run(main)
