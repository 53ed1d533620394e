"""The reader of machine code, on SYNTHETIC files and on the output of this machine's nvcc."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import synthetic_elf as made
from reproquant.errors import FormatError, ToolError
from reproquant.toolchain import fatbin
from reproquant.toolchain.fatbin import Kernel, images, machine_code, unpack_lz4

QMUL = "_Z9mul_mat_qIL9ggml_type2EEvPKc"


def test_kernels_and_their_bytes_are_listed_for_each_architecture(tmp_path: Path) -> None:
    program = made.program(
        tmp_path / "p",
        made.image(70, made.cubin(70, QMUL, "_Z4addPf")),
        made.image(70, made.cubin(70, "_Z4ropePf", code_bytes=256)),
        made.image(90, made.cubin(90, QMUL, abi=8)),
        made.ptx(90),
    )
    found = machine_code(program)
    assert {number: code.images for number, code in found.items()} == {70: 2, 90: 1}
    assert found[70].kernels == (Kernel(QMUL, 128), Kernel("_Z4addPf", 128), Kernel("_Z4ropePf", 256))
    assert [kernel.name for kernel in found[90].named("mul_mat_q")] == [QMUL]
    assert [(image.kind, image.architecture) for image in images(program)][-1] == ("ptx", 90)


def test_containers_of_several_objects_may_have_zeros_between_them(tmp_path: Path) -> None:
    section = (
        made.container(made.image(70, made.cubin(70, "a")))
        + bytes(16)
        + made.container(made.ptx(70))
        + bytes(4)
    )
    path = tmp_path / "p"
    path.write_bytes(made.elf({fatbin.SECTION: section}))
    assert [image.kind for image in images(path)] == ["cubin", "ptx"]


def test_packed_code_is_unpacked(tmp_path: Path) -> None:
    program = made.program(tmp_path / "p", made.packed(70, made.cubin(70, QMUL, code_bytes=900)))
    assert machine_code(program)[70].kernels == (Kernel(QMUL, 900),)


def test_a_kernel_without_code_is_none(tmp_path: Path) -> None:
    program = made.program(tmp_path / "p", made.image(70, made.cubin(70, "declared", code_bytes=0)))
    assert machine_code(program)[70].kernels == ()


def test_what_libcudadevrt_brings_does_not_count(tmp_path: Path) -> None:
    trap = made.container(made.image(70, made.cubin(70, "cudaDeviceRuntime")))
    program = made.program(tmp_path / "p", made.ptx(70), others={"__nv_relfatbin": trap})
    assert machine_code(program) == {}


def test_a_file_without_the_section_holds_nothing(tmp_path: Path) -> None:
    assert images(made.program(tmp_path / "p")) == []


def test_an_object_with_more_sections_than_two_bytes_can_count_is_read(tmp_path: Path) -> None:
    many = {f".text.{number}": b"" for number in range(65_300)}
    program = made.program(tmp_path / "p", made.image(70, made.cubin(70, QMUL)), others=many)
    assert machine_code(program)[70].images == 1


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01\x01" + bytes(60)])
def test_what_is_no_64_bit_elf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(FormatError, match="not a 64-bit ELF file"):
        images(tmp_path / "p")


def test_a_file_without_section_headers_is_refused_in_words(tmp_path: Path) -> None:
    program = made.program(tmp_path / "p", made.image(70, made.cubin(70, QMUL)))
    content = bytearray(program.read_bytes())
    content[0x28:0x30] = bytes(8)
    program.write_bytes(content)
    with pytest.raises(FormatError, match="section headers were stripped"):
        images(program)


@pytest.mark.parametrize(
    ("reason", "section"),
    [
        ("is no container", b"not a container "),
        ("is no container", fatbin.CONTAINER.pack(fatbin.CONTAINER_MAGIC, 1, 0, 0) + bytes(16)),
        ("longer than the file", made.container(made.ptx(70))[:-8]),
        ("cut off", fatbin.CONTAINER.pack(fatbin.CONTAINER_MAGIC, 1, 16, 8) + bytes(8)),
        ("shorter than its own header", made.container(bytes(64))),
        ("bytes at its end", made.container(made.ptx(70)) + b"rest"),
    ],
)
def test_a_section_that_is_not_made_of_whole_containers_is_refused(
    tmp_path: Path, reason: str, section: bytes
) -> None:
    (tmp_path / "p").write_bytes(made.elf({fatbin.SECTION: section}))
    with pytest.raises(FormatError, match=reason):
        images(tmp_path / "p")


def test_a_cubin_of_another_architecture_than_its_entry_says_is_refused(tmp_path: Path) -> None:
    program = made.program(tmp_path / "p", made.image(70, made.cubin(75, QMUL)))
    with pytest.raises(FormatError, match="its entry says sm_70, the cubin itself sm_75"):
        machine_code(program)


def test_a_program_for_another_processor_is_no_cubin(tmp_path: Path) -> None:
    program = made.program(tmp_path / "p", made.image(70, made.elf({".text.x": b"\x90"})))
    with pytest.raises(FormatError, match="for another processor"):
        machine_code(program)


def test_any_damage_is_one_error_or_the_truth(tmp_path: Path) -> None:
    """Bytes are changed anywhere; what may come out is an error that names the file, never a traceback."""
    program = made.program(tmp_path / "p", made.packed(70, made.cubin(70, QMUL)), made.ptx(75))
    content, dice = program.read_bytes(), random.Random(70)
    for _ in range(500):
        damaged = bytearray(content)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        program.write_bytes(damaged[: dice.randint(1, len(damaged))] if dice.random() < 0.2 else damaged)
        try:
            machine_code(program)
        except (FormatError, ToolError) as error:
            assert error.remedy


@pytest.mark.parametrize(
    ("packed", "unpacked"),
    [
        (b"\x30abc", b"abc"),
        (b"\x35abc\x03\x00\x10d", b"abcabcabcabcd"),  # a match that reaches into itself
        (b"\x1fa\x01\x00\x05\x10b", b"a" * 25 + b"b"),  # a run
        (b"\xf0\xff\x00" + b"x" * 270, b"x" * 270),  # a length of 15 + 255 + 0
    ],
)
def test_lz4_blocks_unpack_as_the_format_says(packed: bytes, unpacked: bytes) -> None:
    assert unpack_lz4(memoryview(packed), len(unpacked)) == unpacked


@pytest.mark.parametrize("packed", [b"\xf0", b"\x30ab", b"\x15a\x00\x00\x00", b"\x15a\x09\x00\x00", b"\x10a"])
def test_a_broken_lz4_block_is_refused(packed: bytes) -> None:
    with pytest.raises(FormatError, match="LZ4 block"):
        unpack_lz4(memoryview(packed), 7)


def test_zstd_without_a_module_for_it_is_refused_with_two_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("compression", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    program = made.program(tmp_path / "p", made.packed(70, made.cubin(70, QMUL), flags=fatbin.ZSTD))
    assert [image.packing for image in images(program)] == ["zstd"]
    with pytest.raises(ToolError, match="zstd") as refusal:
        machine_code(program)
    assert "pip install zstandard" in refusal.value.remedy
    assert "GGML_CUDA_COMPRESSION_MODE=none" in refusal.value.remedy


HELLO = """
__global__ void hello(float *x) { x[threadIdx.x] += 1; }
int main() { hello<<<1, 32>>>(nullptr); return cudaDeviceSynchronize(); }
"""


def listed_codes() -> list[int]:
    """What this machine's nvcc can compile for."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return []
    said = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    return [int(word.removeprefix("sm_")) for word in said.split()]


@pytest.mark.skipif(not listed_codes(), reason="no CUDA compiler on this machine")
def test_what_this_machines_nvcc_compiles_is_found_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "hello.cu").write_text(HELLO)
    own, other = listed_codes()[:2]
    targets = [
        f"-gencode=arch=compute_{own},code=sm_{own}",
        f"-gencode=arch=compute_{other},code=compute_{other}",
    ]
    subprocess.run(
        ["nvcc", *targets, "-o", tmp_path / "hello", tmp_path / "hello.cu"], check=True, capture_output=True
    )
    found = machine_code(tmp_path / "hello")
    assert {number: [kernel.name for kernel in code.kernels] for number, code in found.items()} == {
        own: ["_Z5helloPf"]
    }
    assert {image.architecture for image in images(tmp_path / "hello") if image.kind == "ptx"} == {other}
    subprocess.run(["strip", tmp_path / "hello"], check=True)
    assert machine_code(tmp_path / "hello") == found
