"""Install a bundle on a machine without network: run with that machine's own Python, which needs only pip."""

from pathlib import Path

from reproquant import program
from reproquant.airgap.install import install
from reproquant.files import repository


def main(folder: Path) -> None:
    for step in install(folder / "parts", folder, repository()):
        print(step, flush=True)


if __name__ == "__main__":
    program.run(main)
