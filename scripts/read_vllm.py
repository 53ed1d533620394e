"""Read out of the installed vLLM which GPUs it refuses, and how; stop if the tables say otherwise."""

from pathlib import Path

from reproquant import program
from reproquant.engines.vllm_source import insist, of_study, read
from reproquant.files import write_json
from reproquant.stage import stage


def main(study: Path, recipe: str, log: Path, environment: Path, output: Path) -> None:
    with stage("read_vllm", study, recipe, log, [environment], output) as run:
        found = read(of_study(run.study, run.folder, run.log))
        insist(found)
        write_json(run.scratch(output), found.as_data())


if __name__ == "__main__":
    program.run(main)
