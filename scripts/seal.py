"""Write a finished study's root: one file that names every record by digest."""

from pathlib import Path

from reproquant import program
from reproquant.files import write_json
from reproquant.provenance.root import seal


def main(study: Path, output: Path) -> None:
    write_json(output, seal(study.parent))


if __name__ == "__main__":
    program.run(main)
