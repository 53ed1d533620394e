"""Read out of the built llama-server which GPUs it has machine code for; stop if the study's is missing."""

from pathlib import Path

from reproquant import program
from reproquant.files import write_json
from reproquant.stage import stage
from reproquant.toolchain.llama_cpp import Build
from reproquant.toolchain.machine_code import GGML_KERNELS, prove


def main(study: Path, recipe: str, log: Path, llama_cpp: Path, output: Path) -> None:
    with stage("prove_cuda", study, recipe, log, [llama_cpp], output) as run:
        server = Build.load(llama_cpp).binary("llama-server")
        write_json(run.scratch(output), prove(server, run.study.llama_cpp.cuda_architectures, GGML_KERNELS))


if __name__ == "__main__":
    program.run(main)
