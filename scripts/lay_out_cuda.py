"""Lay out a CUDA 12.4 that compiles for sm_70 from Debian's packages, without installing it; print its root.

Give the root as ``llama_cpp.cuda_toolkit``. It takes 1.26 GB of downloads through
this machine's own apt sources, once, and 0.8 GB in the store.
"""

from __future__ import annotations

import sys

import typer

from reproquant.errors import ReproquantError
from reproquant.files import store
from reproquant.toolchain.debian_cuda import lay_out


def main() -> None:
    try:
        print(lay_out(store() / "logs" / "lay_out_cuda.log"))
    except ReproquantError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
