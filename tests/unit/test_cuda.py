"""What is checked around nvcc: the host compiler's release, one toolkit for all, NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproquant.errors import ToolError
from reproquant.toolchain.cmake import Cuda
from reproquant.toolchain.cuda import check_host_compiler, configured

REFUSAL = "#error -- unsupported GNU version! gcc versions later than {} are not supported! The nvcc flag"


def toolkit(root: Path, version: str, newest: str) -> Cuda:
    """A toolkit's header as far as it is read, with NVIDIA's own words."""
    (root / "include/crt").mkdir(parents=True)
    (root / "include/crt/host_config.h").write_text(REFUSAL.format(newest))
    return Cuda(root, version)


def gcc(folder: Path, version: str) -> Path:
    """A program that answers -dumpfullversion, and nothing else."""
    path = folder / "g++"
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("cuda", "newest", "allowed", "refused"),
    [("12.4.131", "13", "13.3.0", "14.2.0"), ("12.9.86", "14", "14.2.0", "15.1.0")],
)
def test_a_host_compiler_that_is_too_new_for_the_toolkit_is_refused(
    tmp_path: Path, cuda: str, newest: str, allowed: str, refused: str
) -> None:
    chosen = toolkit(tmp_path, cuda, newest)
    check_host_compiler(chosen, gcc(tmp_path, allowed))
    with pytest.raises(ToolError, match=f"GCC {refused}, and nvcc {cuda} works with GCC {newest}") as told:
        check_host_compiler(chosen, gcc(tmp_path, refused))
    assert f"apt-get install gcc-{newest} g++-{newest}" in told.value.remedy


def build_folder(root: Path, toolkit: str, compiler: str, nccl: str) -> Path:
    """The lines that are read of what CMake 4.3 leaves after configuring llama.cpp with CUDA."""
    folder = root / "CMakeFiles/4.3.0"
    folder.mkdir(parents=True)
    (folder / "CMakeCUDACompiler.cmake").write_text(
        f'set(CMAKE_CUDA_COMPILER_ID "NVIDIA")\nset(CMAKE_CUDA_COMPILER_VERSION "{compiler}")\n'
    )
    (root / "CMakeCache.txt").write_text(
        "FIND_PACKAGE_MESSAGE_DETAILS_CUDAToolkit:INTERNAL="
        f"[/opt/cuda/include][/opt/cuda/lib64/libcudart.so][/opt/cuda/bin][v{toolkit}()]\n{nccl}"
    )
    return root


NO_NCCL = "NCCL_INCLUDE_DIR:PATH=NCCL_INCLUDE_DIR-NOTFOUND\nNCCL_LIBRARY:FILEPATH=NCCL_LIBRARY-NOTFOUND\n"


def test_compiler_and_libraries_of_one_release_are_noted(tmp_path: Path) -> None:
    assert configured(build_folder(tmp_path, "12.4.131", "12.4.131", NO_NCCL)) == {
        "toolkit": "12.4.131",
        "compiler": "12.4.131",
        "nccl": None,
    }


def test_libraries_of_another_cuda_than_the_compiler_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ToolError, match=r"compiler of release 12\.4\.131 and the libraries of release 13\.0\.88"
    ):
        configured(build_folder(tmp_path, "13.0.88", "12.4.131", NO_NCCL))


def test_the_release_of_nccl_is_noted(tmp_path: Path) -> None:
    (tmp_path / "nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 26\n#define NCCL_PATCH 2\n")
    found = f"NCCL_INCLUDE_DIR:PATH={tmp_path}\nNCCL_LIBRARY:FILEPATH=/usr/lib/libnccl.so\n"
    assert configured(build_folder(tmp_path / "b", "12.9.86", "12.9.86", found))["nccl"] == "2.26.2"
