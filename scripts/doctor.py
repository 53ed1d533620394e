"""Examine the machine for the study; fail, with every reason, if the study is impossible on it."""

import sys
from pathlib import Path

from reproquant import program
from reproquant.doctor import as_data, examine, insist, read
from reproquant.doctor.command import show
from reproquant.files import write_json
from reproquant.stage import stage


def main(study: Path, recipe: str, log: Path, output: Path) -> None:
    with stage("doctor", study, recipe, log, [], output) as run:
        reading = read(run.study, study.parent)
        checks = examine(run.study, reading)
        show(checks, sys.stdout)
        insist(run.study, checks)
        write_json(run.scratch(output), as_data(run.study, checks, reading))


if __name__ == "__main__":
    program.run(main)
