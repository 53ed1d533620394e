"""Provide one environment, built in the store, external or an image, and describe what is in it."""

from pathlib import Path

from reproquant import program
from reproquant.files import write_json
from reproquant.stage import stage
from reproquant.toolchain import environments


def main(study: Path, recipe: str, log: Path, environment: str, output: Path) -> None:
    with stage("build_environment", study, recipe, log, [], output, environment=environment) as run:
        role = run.study.environments.role(environment)
        write_json(run.scratch(output), environments.examine(run.study, role, run.log))


if __name__ == "__main__":
    program.run(main)
