"""Lay out a CUDA 12.4 that compiles for sm_70 from Debian's packages, without installing it; print its root.

Give the root as ``llama_cpp.cuda_toolkit``. It takes 1.26 GB of downloads through
this machine's own apt sources, once, and 0.8 GB in the store.
"""

from reproquant import program
from reproquant.files import store
from reproquant.toolchain.debian_cuda import lay_out


def main() -> None:
    print(lay_out(store() / "logs" / "lay_out_cuda.log"))


if __name__ == "__main__":
    program.run(main)
