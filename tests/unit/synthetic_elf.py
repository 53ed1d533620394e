"""SYNTHETIC files in the shape of nvcc's: ELF files with containers of PTX and cubins. No code in them runs."""

from __future__ import annotations

import struct
from pathlib import Path

from reproquant.toolchain import fatbin

X86_64 = 62
OBJECT, PROGRAM = 1, 2


def elf(sections: dict[str, bytes], machine: int = X86_64, flags: int = 0, abi: int = 0) -> bytes:
    """A 64-bit ELF file with these sections and a table of their names."""
    named = {"": b"", **sections, ".shstrtab": b""}
    names = b"".join(name.encode() + b"\0" for name in named)
    named[".shstrtab"] = names
    place, title, headers, body = fatbin.ELF_HEADER.size, 0, [], []
    for name, content in named.items():
        headers.append(fatbin.ELF_SECTION.pack(title, 1, 0, 0, place, len(content), 0, 0, 1, 0))
        body.append(content)
        place += len(content)
        title += len(name.encode()) + 1
    count = len(headers)
    if count > 0xFEFF:  # the format's way to say more than two bytes can hold
        headers[0] = fatbin.ELF_SECTION.pack(0, 0, 0, 0, 0, count, count - 1, 0, 0, 0)
    many = count > 0xFEFF
    identity = b"\x7fELF\x02\x01\x01\x00" + bytes([abi]) + bytes(7)
    header = fatbin.ELF_HEADER.pack(
        identity, OBJECT, machine, 1, 0, 0, place, flags, 64, 0, 0, 64,
        0 if many else count, 0xFFFF if many else count - 1,
    )  # fmt: skip
    return header + b"".join(body) + b"".join(headers)


def cubin(architecture: int, *kernels: str, code_bytes: int = 128, abi: int = 7) -> bytes:
    """A cubin with these kernels; ``abi`` 7 is CUDA 12's and 8 is CUDA 13's."""
    flags = 0x460500 | architecture if abi < 8 else architecture << 8 | 0x04
    sections = {f".text.{name}": b"\x01" * code_bytes for name in kernels}
    return elf({".nv.info": b"", **sections}, fatbin.EM_CUDA, flags, abi)


def image(
    architecture: int, content: bytes, kind: int = 2, flags: int = 0x11, unpacked: int | None = None
) -> bytes:
    """A container's entry, as fatbinary writes it; ``unpacked`` is given if ``content`` is packed."""
    padded = content + bytes(-len(content) % 8)
    packed = 0 if unpacked is None else len(content)
    header = struct.pack(
        "<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(padded), packed, 0, 8, 1, architecture, 0, 0, flags, 0,
        unpacked or 0,
    )  # fmt: skip
    return header + padded


def ptx(architecture: int) -> bytes:
    return image(architecture, b".version 8.4\n.target sm_70\n", kind=1)


def packed(architecture: int, content: bytes, flags: int = 0x11 | fatbin.LZ4) -> bytes:
    """An entry whose cubin is an LZ4 block of literals alone, the simplest that there is."""
    length, more = min(len(content), 15) << 4, len(content) - 15
    sizes = b"" if more < 0 else b"\xff" * (more // 255) + bytes([more % 255])
    return image(architecture, bytes([length]) + sizes + content, flags=flags, unpacked=len(content))


def container(*images: bytes) -> bytes:
    content = b"".join(images)
    return fatbin.CONTAINER.pack(fatbin.CONTAINER_MAGIC, 1, 16, len(content)) + content


def program(path: Path, *images: bytes, others: dict[str, bytes] | None = None) -> Path:
    """A program with one container of ``images``, or without any; ``others`` are more sections."""
    code = {fatbin.SECTION: container(*images)} if images else {}
    path.write_bytes(elf({".text": b"\xc3", **(others or {}), **code}))
    return path
