"""The proof of machine code and its controls with a real CUDA 12.4; no GPU is needed.

The toolkit is laid out from Debian's packages (1.26 GB, once). Where they can't be
had, as on Ubuntu, these tests are skipped: tests/unit has the controls on synthetic files.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from reproquant.errors import DownloadError, FormatError
from reproquant.files import repository, store
from reproquant.study import SdistSource, read_yaml
from reproquant.toolchain import fatbin
from reproquant.toolchain.cmake import find_cuda, find_tools
from reproquant.toolchain.cuda import check_host_compiler
from reproquant.toolchain.debian_cuda import lay_out
from reproquant.toolchain.llama_cpp import SAME_NAMES, SourceTree, fetch_source
from reproquant.toolchain.machine_code import GGML_KERNELS, prove

HELLO = """
__global__ void hello(float *x) { x[threadIdx.x] += 1; }
int main() { hello<<<1, 32>>>(nullptr); return cudaDeviceSynchronize(); }
"""
SM_70, SM_75 = "-gencode=arch=compute_70,code=sm_70", "-gencode=arch=compute_75,code=sm_75"
PTX = "-gencode=arch=compute_70,code=compute_70"


@pytest.fixture(scope="session")
def toolkit() -> Path:
    try:
        root = lay_out(store() / "logs" / "lay_out_cuda.log")
    except DownloadError as error:
        pytest.skip(str(error))
    check_host_compiler(find_cuda(str(root), (70,)), find_tools().cxx)
    return root


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> SourceTree:
    """llama.cpp as the small studies pin it."""
    spec = read_yaml(repository() / "workflow/studies/embedded.yaml")["llama_cpp"]["sdist"]
    return fetch_source(SdistSource(**spec), tmp_path_factory.mktemp("logs") / "fetch.log")


def nvcc(toolkit: Path, *words: object) -> None:
    subprocess.run([toolkit / "bin/nvcc", *words], check=True)


def hello(toolkit: Path, folder: Path, *flags: str) -> Path:
    (folder / "hello.cu").write_text(HELLO)
    nvcc(toolkit, *flags, "-o", folder / "hello", folder / "hello.cu")
    return folder / "hello"


def changed(program: Path, *words: str) -> Path:
    """A copy of a program, changed by objcopy."""
    copy = program.with_suffix(".changed")
    subprocess.run(["objcopy", *words, program, copy], check=True)
    return copy


def refused(program: Path, kernels: tuple[str, ...] = ("hello",)) -> str:
    with pytest.raises(FormatError) as refusal:
        prove(program, [70], kernels)
    return refusal.value.reason


def test_a_program_compiled_for_sm_70_passes(toolkit: Path, tmp_path: Path) -> None:
    facts = prove(hello(toolkit, tmp_path, SM_70), [70], ["hello"])
    assert facts["images"] == {"sm_70": 2}  # the second one is nvcc's link step's, and empty
    assert facts["machine_code"]["sm_70"]["kernels"] == 1
    assert facts["machine_code"]["sm_70"]["named"]["hello"]["longest"] == "_Z5helloPf"


def test_packed_machine_code_passes(toolkit: Path, tmp_path: Path) -> None:
    program = hello(toolkit, tmp_path, SM_70, "--fatbin-options=-compress-all")
    assert {image.packing for image in fatbin.images(program)} == {"lz4"}
    assert prove(program, [70], ["hello"])["machine_code"]["sm_70"]["kernels"] == 1


def test_ptx_alone_fails_although_libcudadevrt_has_code_for_sm_70(toolkit: Path, tmp_path: Path) -> None:
    program = hello(toolkit, tmp_path, PTX)
    assert refused(program) == "it has no machine code for sm_70; it holds compute_70 (1 images)"
    section = f"--rename-section=__nv_relfatbin={fatbin.SECTION}"
    trap = changed(program, f"--remove-section={fatbin.SECTION}", section)
    assert 70 in {image.architecture for image in fatbin.images(trap) if image.kind == "cubin"}


def test_sm_75_alone_fails(toolkit: Path, tmp_path: Path) -> None:
    assert "it holds sm_75 (2 images)" in refused(hello(toolkit, tmp_path, SM_75))


def test_strip_takes_symbols_and_no_machine_code(toolkit: Path, tmp_path: Path) -> None:
    program = hello(toolkit, tmp_path, SM_70)
    facts = prove(program, [70], ["hello"])
    subprocess.run(["strip", program], check=True)
    assert prove(program, [70], ["hello"])["machine_code"] == facts["machine_code"]


def test_a_program_whose_machine_code_was_stripped_fails(toolkit: Path, tmp_path: Path) -> None:
    stripped = changed(hello(toolkit, tmp_path, SM_70), f"--remove-section={fatbin.SECTION}")
    assert "nothing for any GPU" in refused(stripped)


def test_cublas_has_code_for_sm_70_and_fails_for_want_of_a_kernel_of_ggml(toolkit: Path) -> None:
    cublas = toolkit / "lib64/libcublas.so.12"
    assert 70 in {image.architecture for image in fatbin.images(cublas) if image.kind == "cubin"}
    assert "no kernel named mul_mat_q or" in refused(cublas, GGML_KERNELS)


def test_an_object_of_llama_cpp_has_its_kernels_for_sm_70(
    toolkit: Path, source: SourceTree, tmp_path: Path
) -> None:
    folder = source.root / "ggml/src/ggml-cuda"
    includes = [f"-I{folder}", f"-I{folder.parent}", f"-I{source.root / 'ggml/include'}"]
    flags = ["-std=c++17", "-O3", "-use_fast_math", "-extended-lambda", SM_70]
    made = tmp_path / "mmq-instance-q4_0.cu.o"
    nvcc(toolkit, *flags, *includes, "-c", folder / "template-instances/mmq-instance-q4_0.cu", "-o", made)
    code = prove(made, [70], ["mul_mat_q"])["machine_code"]["sm_70"]
    print(code)
    assert code["images"] == 1 and code["named"]["mul_mat_q"]["kernels"] > 10


def compiled(toolkit: Path, source: Path, build: Path, *flags: str) -> bytes:
    """The object of one of llama.cpp's kernels, with no flag that tells where it was compiled."""
    build.mkdir(parents=True)
    mapped = f"-Xcompiler=-ffile-prefix-map={source}=llama.cpp,-ffile-prefix-map={build}=build"
    includes = [f"-I{source / folder}" for folder in ("include", "src", "src/ggml-cuda")]
    nvcc(
        toolkit,
        "-O3",
        SM_70,
        mapped,
        *flags,
        *includes,
        "-c",
        source / "src/ggml-cuda/acc.cu",
        "-o",
        build / "acc.o",
    )
    return (build / "acc.o").read_bytes()


def test_an_object_has_the_same_bytes_wherever_it_is_compiled_and_other_bytes_without_our_flag(
    toolkit: Path, source: SourceTree, tmp_path: Path
) -> None:
    here, there = source.root / "ggml", tmp_path / "elsewhere"
    shutil.copytree(here, there)
    same = [compiled(toolkit, place, tmp_path / place.name / "build", SAME_NAMES) for place in (here, there)]
    assert same[0] == same[1]
    assert compiled(toolkit, here, tmp_path / "first") != compiled(toolkit, here, tmp_path / "second")
