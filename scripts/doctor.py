"""Examine the machine for the study; fail, with every reason, if what is about to run is impossible on it."""

import sys
from pathlib import Path

from reproquant import program
from reproquant.doctor import as_data, examine, insist, read
from reproquant.doctor.command import show
from reproquant.files import write_json
from reproquant.study import Study


def main(study: Path, running: list[str], output: Path) -> None:
    wanted = Study.load(study)
    reading = read(wanted, study.parent)
    checks = examine(wanted, reading)
    show(checks, sys.stderr)
    later = [check.name for check in checks if check.verdict == "impossible" and not check.stops(running)]
    if later:
        print(f"not in the way of what runs now: {', '.join(later)}", file=sys.stderr)
    write_json(output, as_data(wanted, checks, reading))
    insist(wanted, checks, running)


if __name__ == "__main__":
    program.run(main)
