"""Quantize a GGUF with the study's own llama-quantize."""

from pathlib import Path

from reproquant import program
from reproquant.gguf.quantize import quantize
from reproquant.stage import stage
from reproquant.toolchain.llama_cpp import Build


def main(
    study: Path, recipe: str, log: Path, f16: Path, llama_cpp: Path, type: str, output: Path, threads: int
) -> None:
    with stage("quantize_gguf", study, recipe, log, [f16, llama_cpp], output, type=type) as run:
        quantize(f16, run.scratch(output), type, Build.load(llama_cpp), threads, run.log)


if __name__ == "__main__":
    program.run(main)
