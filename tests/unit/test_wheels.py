"""Wheels read for machine code without being installed, on SYNTHETIC wheels."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import synthetic_elf as made
from reproquant.errors import DownloadError, FormatError, StudyError
from reproquant.files import sha256_file
from reproquant.toolchain.wheels import fetch, prove_wheel


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPROQUANT_STORE", str(tmp_path / "store"))
    (tmp_path / "store").mkdir()


def wheel(folder: Path, name: str = "p-1.0-py3-none-any.whl", **libraries: bytes) -> Path:
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("p/__init__.py", "")
        for library, content in libraries.items():
            archive.writestr(f"p/{library}.so", content)
        archive.writestr("p-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: p\nVersion: 1.0\n")
        archive.writestr(
            "p-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("p-1.0.dist-info/RECORD", "")
    return folder / name


def library(folder: Path, *images: bytes) -> bytes:
    return made.program(folder / "library", *images).read_bytes()


def test_the_libraries_with_code_for_the_architecture_are_described(tmp_path: Path) -> None:
    volta = library(tmp_path, made.image(70, made.cubin(70, "_Z15paged_attentionv")))
    hopper = library(tmp_path, made.image(90, made.cubin(90, "_Z5flashv")))
    found = prove_wheel(
        wheel(tmp_path, _C=volta, _hopper=hopper, plain=library(tmp_path)), 70, ["paged_attention"]
    )
    assert [facts["program"] for facts in found] == ["_C.so"]
    assert found[0]["machine_code"]["sm_70"]["named"]["paged_attention"]["kernels"] == 1


def test_a_wheel_without_code_for_the_architecture_is_refused(tmp_path: Path) -> None:
    turing = library(tmp_path, made.image(75, made.cubin(75, "_Z15paged_attentionv")), made.ptx(70))
    with pytest.raises(FormatError, match=r"it has nothing for sm_70; _C\.so has sm_75"):
        prove_wheel(wheel(tmp_path, _C=turing), 70, ["paged_attention"])


def test_a_wheel_without_the_kernel_that_matters_is_refused(tmp_path: Path) -> None:
    volta = library(tmp_path, made.image(70, made.cubin(70, "_Z3addv")))
    with pytest.raises(FormatError, match="no kernel named paged_attention for sm_70"):
        prove_wheel(wheel(tmp_path, _C=volta), 70, ["paged_attention"])


def lock(folder: Path, sha256: str) -> Path:
    (folder / "p.lock").write_text(
        f"# a remark\nother==2.0 \\\n    --hash=sha256:{'0' * 64}\np==1.0 \\\n    --hash=sha256:{sha256}\n"
    )
    return folder / "p.lock"


def test_the_locked_wheel_is_fetched_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = wheel(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DownloadError, match="sha256"):
        fetch(lock(tmp_path, "f" * 64), "p", tmp_path / "log")
    got = fetch(lock(tmp_path, sha256_file(offered)), "p", tmp_path / "log")
    assert got.read_bytes() == offered.read_bytes()


def test_a_wheel_that_another_lock_named_lies_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    first = wheel(tmp_path)
    assert fetch(lock(tmp_path, sha256_file(first)), "p", tmp_path / "log").name == first.name
    second = wheel(tmp_path, "p-1.0-py2.py3-none-any.whl", more=b"")
    assert fetch(lock(tmp_path, sha256_file(second)), "p", tmp_path / "log").name == second.name


def test_a_package_that_the_lock_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no package 'absent'"):
        fetch(lock(tmp_path, "0" * 64), "absent", tmp_path / "log")
