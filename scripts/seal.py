"""Write a finished study's root: one file that names every record by digest."""

import sys
from pathlib import Path

from reproquant import program
from reproquant.errors import ReproquantError
from reproquant.files import write_json
from reproquant.provenance.root import seal


def main(study: Path, output: Path) -> None:
    try:
        write_json(output, seal(study.parent))
    except ReproquantError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    program.run(main)
