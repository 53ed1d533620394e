"""Build one locked environment in the store and describe what is in it."""

from pathlib import Path

from reproquant import program
from reproquant.files import write_json
from reproquant.stage import stage
from reproquant.toolchain import python_env


def main(study: Path, recipe: str, log: Path, environment: str, output: Path) -> None:
    with stage("build_environment", study, recipe, log, [], output, environment=environment) as run:
        built = python_env.ensure(environment, run.log)
        write_json(run.scratch(output), built.describe())


if __name__ == "__main__":
    program.run(main)
