"""Read out of the installed vLLM which GPUs it refuses, and how; stop if the tables say otherwise."""

from pathlib import Path

from reproquant import program
from reproquant.engines.vllm_source import insist, read
from reproquant.files import write_json
from reproquant.stage import stage
from reproquant.study import Study
from reproquant.toolchain import python_env


def main(study: Path, recipe: str, log: Path, environment: Path, output: Path) -> None:
    with stage("read_vllm", study, recipe, log, [environment], output) as run:
        found = read(installed(run.study, run.log))
        insist(found)
        write_json(run.scratch(output), found.as_data())


def installed(study: Study, log: Path) -> Path:
    """The folder that holds the study's vLLM."""
    return python_env.ensure(study.environments.vllm, log).site_packages


if __name__ == "__main__":
    program.run(main)
