"""Bring the study's model, from wherever it comes, into one checkpoint with a manifest."""

from pathlib import Path

from reproquant import program
from reproquant.model import manifest, sources
from reproquant.stage import stage
from reproquant.toolchain.llama_cpp import fetch_source

QWEN_VOCABULARY = "models/ggml-vocab-qwen2.gguf"


def main(study: Path, recipe: str, log: Path, output: Path, llama_cpp: Path | None = None) -> None:
    inputs = [llama_cpp] if llama_cpp else []
    with stage("fetch_model", study, recipe, log, inputs, output) as run:
        checkpoint = run.scratch(output.parent / "checkpoint")
        vocabulary = fetch_source(run.study.llama_cpp.spec, log).root / QWEN_VOCABULARY if llama_cpp else None
        source = sources.fetch(run.study.model, checkpoint, log, run.tell, vocabulary)
        manifest.write(checkpoint, run.scratch(output), run.study.model.name, source)


if __name__ == "__main__":
    program.run(main)
