"""Install a bundle on a machine without network: run with that machine's own Python, which needs only pip."""

import argparse
import sys
from pathlib import Path

from reproquant.airgap.install import install
from reproquant.errors import ReproquantError
from reproquant.files import repository


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="it holds the folder 'parts'")
    folder = parser.parse_args().folder
    try:
        for step in install(folder / "parts", folder, repository()):
            print(step, flush=True)
    except ReproquantError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
