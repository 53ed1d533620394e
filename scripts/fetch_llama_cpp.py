"""Fetch the study's llama.cpp source into the store and say what it is."""

from pathlib import Path

from reproquant import program
from reproquant.files import write_json
from reproquant.stage import stage
from reproquant.toolchain.llama_cpp import fetch_source


def main(study: Path, recipe: str, log: Path, output: Path) -> None:
    with stage("fetch_llama_cpp", study, recipe, log, [], output) as run:
        write_json(run.scratch(output), fetch_source(run.study.llama_cpp.spec, run.log).facts)


if __name__ == "__main__":
    program.run(main)
