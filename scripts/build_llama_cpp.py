"""Build llama.cpp's tools as the study says and describe the build."""

from pathlib import Path

from reproquant import program
from reproquant.files import write_json
from reproquant.stage import stage
from reproquant.toolchain.llama_cpp import build, fetch_source


def main(study: Path, recipe: str, log: Path, source: Path, output: Path, threads: int) -> None:
    with stage("build_llama_cpp", study, recipe, log, [source], output) as run:
        settings = run.study.llama_cpp
        tree = fetch_source(settings.spec, run.log)
        facts = build(settings, tree, run.scratch(output.parent / "bin"), threads, run.log)
        write_json(run.scratch(output), facts)


if __name__ == "__main__":
    program.run(main)
