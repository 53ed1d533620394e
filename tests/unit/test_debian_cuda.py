"""The laying out of a CUDA toolkit: which source of apt's is taken, where files go. Nothing is downloaded."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from reproquant.errors import DownloadError
from reproquant.toolchain.debian_cuda import _unpack, source_list

STANZAS = """\
# a remark
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
LINES = """\
deb [arch=amd64 signed-by=/keys/other.gpg] https://packages.example/tool stable main
deb http://security.example/debian-security bookworm-security main
deb [signed-by=/keys/debian.gpg] http://mirror.example/debian bookworm main contrib
deb-src http://mirror.example/debian bookworm main
"""


@pytest.mark.parametrize(
    ("text", "key"),
    [(STANZAS, "/usr/share/keyrings/debian-archive-keyring.gpg"), (LINES, "/keys/debian.gpg")],
)
def test_the_source_is_the_machines_own_with_another_suite(text: str, key: str) -> None:
    assert dict(line.split(": ") for line in source_list([text]).splitlines()) == {
        "Types": "deb",
        "URIs": "http://mirror.example/debian",
        "Signed-By": key,
        "Suites": "trixie",
        "Components": "main non-free",
    }


def test_a_machine_without_debians_archive_is_told_what_to_do_instead() -> None:
    ubuntu = "deb http://archive.example/ubuntu noble main\n"
    with pytest.raises(DownloadError, match="no source of Debian's main archive") as refusal:
        source_list([ubuntu])
    assert "llama_cpp.cuda_toolkit" in refusal.value.remedy


def test_a_package_is_unpacked_into_nvidias_layout(tmp_path: Path) -> None:
    package = tmp_path / "package"
    control = "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.example>\nDescription: d\n"
    for name, text in {
        "DEBIAN/control": control,
        "usr/bin/nvcc": "a wrapper",
        "usr/bin/ptxas": "",
        "usr/lib/nvidia-cuda-toolkit/bin/nvcc": "the compiler",
        "usr/lib/nvidia-cuda-toolkit/bin/cicc": "",
        "usr/lib/nvidia-cuda-toolkit/libdevice/libdevice.10.bc": "",
        "usr/include/crt/host_config.h": "",
        "usr/lib/x86_64-linux-gnu/libcudart.so.12": "",
        "usr/lib/x86_64-linux-gnu/libcudadevrt.a": "",
        "usr/lib/x86_64-linux-gnu/libcublasLt_static.a": "",
        "usr/lib/x86_64-linux-gnu/stubs/libcuda.so": "",
        "usr/share/doc/p/copyright": "",
    }.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (package / "usr/lib/x86_64-linux-gnu/libcudart.so").symlink_to("libcudart.so.12")
    made = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", package, tmp_path / "p.deb"]
    subprocess.run(made, check=True, capture_output=True)
    root = tmp_path / "root"
    _unpack(tmp_path / "p.deb", root)
    assert {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()} == {
        "bin/nvcc", "bin/ptxas", "nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc", "include/crt/host_config.h",
        "lib64/libcudart.so", "lib64/libcudart.so.12", "lib64/libcudadevrt.a", "lib64/stubs/libcuda.so",
    }  # fmt: skip
    assert (root / "bin/nvcc").read_text() == "the compiler"
    assert (root / "lib64/libcudart.so").readlink() == Path("libcudart.so.12")
