"""The proof of machine code and its controls, on SYNTHETIC files; `make test-cuda` has them with real code."""

from __future__ import annotations

from pathlib import Path

import pytest

import synthetic_elf as made
from reproquant.errors import FormatError
from reproquant.toolchain.machine_code import GGML_KERNELS, prove

GGML = ("_Z9mul_mat_qIL9ggml_type2EEvPKc", "_Z13mul_mat_vec_qIL9ggml_type2EEvPKc", "_Z18flash_attn_ext_vecEv")


def test_machine_code_with_all_kernels_passes_and_is_counted(tmp_path: Path) -> None:
    program = made.program(
        tmp_path / "llama-server",
        made.image(70, made.cubin(70, *GGML, "_Z4addPf")),
        made.packed(70, made.cubin(70, "_Z9mul_mat_qIL9ggml_type8EEvPKc", code_bytes=640)),
        made.image(75, made.cubin(75, *GGML)),
        made.ptx(75),
    )
    facts = prove(program, [70], GGML_KERNELS)
    assert facts["program"] == "llama-server" and facts["bytes"] == program.stat().st_size
    assert facts["images"] == {"sm_70": 2, "sm_75": 1, "compute_75": 1}
    assert facts["machine_code"].keys() == {"sm_70"}
    volta = facts["machine_code"]["sm_70"]
    assert (volta["images"], volta["kernels"], volta["code_bytes"]) == (2, 5, 4 * 128 + 640)
    assert volta["named"]["mul_mat_q"] == {
        "kernels": 2, "code_bytes": 768, "longest": "_Z9mul_mat_qIL9ggml_type8EEvPKc",
    }  # fmt: skip


def refused(program: Path) -> str:
    with pytest.raises(FormatError) as refusal:
        prove(program, [70], GGML_KERNELS)
    assert "build again" in refusal.value.remedy
    return refusal.value.reason


def test_ptx_alone_is_not_enough(tmp_path: Path) -> None:
    reason = refused(made.program(tmp_path / "p", made.ptx(70)))
    assert reason == "it has no machine code for sm_70; it holds compute_70 (1 images)"


def test_ptx_alone_is_not_enough_when_libcudadevrt_brings_code_for_every_architecture(tmp_path: Path) -> None:
    everything = made.container(*(made.image(sm, made.cubin(sm, *GGML)) for sm in (50, 60, 70, 80, 90)))
    program = made.program(tmp_path / "p", made.ptx(70), others={"__nv_relfatbin": everything})
    assert "it holds compute_70 (1 images)" in refused(program)


def test_code_for_a_neighbouring_architecture_is_not_enough(tmp_path: Path) -> None:
    reason = refused(made.program(tmp_path / "p", made.image(75, made.cubin(75, *GGML))))
    assert reason == "it has no machine code for sm_70; it holds sm_75 (1 images)"


def test_a_program_whose_code_was_stripped_out_is_refused(tmp_path: Path) -> None:
    assert "it holds nothing for any GPU" in refused(made.program(tmp_path / "p"))


def test_code_of_another_library_is_not_enough(tmp_path: Path) -> None:
    cublas = made.cubin(70, "_ZN6cublas4gemmEv", "volta_sgemm_128x64_nn")
    reason = refused(made.program(tmp_path / "p", made.image(70, cublas)))
    assert "no kernel named mul_mat_q or mul_mat_vec_q or flash_attn_ext:" in reason
    assert "all 2 kernels, such as volta_sgemm_128x64_nn, come from other" in reason


def test_one_missing_family_of_kernels_is_named(tmp_path: Path) -> None:
    reason = refused(made.program(tmp_path / "p", made.image(70, made.cubin(70, *GGML[:2]))))
    assert "no kernel named flash_attn_ext:" in reason


def test_every_wanted_architecture_is_required(tmp_path: Path) -> None:
    program = made.program(tmp_path / "p", made.image(70, made.cubin(70, *GGML)))
    assert prove(program, [70], GGML_KERNELS)["images"] == {"sm_70": 1}
    with pytest.raises(FormatError, match="sm_80"):
        prove(program, [70, 80], GGML_KERNELS)
