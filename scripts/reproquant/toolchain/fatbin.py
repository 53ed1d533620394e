"""Machine code for NVIDIA GPUs inside ELF files, read without any CUDA tool.

nvcc puts one container of images for each compiled file into the section
``.nv_fatbin``: PTX, which a driver compiles when it is loaded, and cubins, which
are machine code for one architecture and ELF files themselves. The layout of the
containers isn't documented by NVIDIA; it was read off the output of CUDA 12 and 13.

Only ``.nv_fatbin`` counts. The section ``__nv_relfatbin`` comes with libcudadevrt,
which nvcc links by default and which holds code for every architecture, whatever
the program itself was compiled for.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from reproquant.errors import FormatError, ToolError

SECTION = ".nv_fatbin"
CODE_PREFIX = ".text."
"""Each kernel's code is a section of the cubin: this and the kernel's (mangled) name."""

CONTAINER = struct.Struct("<IHHQ")
"""magic, version, size of this header, bytes of images after it"""
CONTAINER_MAGIC = 0xBA55ED50

ENTRY = struct.Struct("<HHIQI8xI8xQ8xQ")
"""kind, version, size of this header, padded payload, packed bytes, SM, flags, unpacked bytes"""
Kind = Literal["ptx", "cubin", "other"]
KINDS: dict[int, Kind] = {1: "ptx", 2: "cubin"}
LZ4, ZSTD = 0x2000, 0x8000

ELF_MAGIC = b"\x7fELF"
ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
ELF_SECTION = struct.Struct("<IIQQQQIIQQ")
CLASS_64_LITTLE_ENDIAN = b"\x02\x01"
EM_CUDA = 190
SHT_NOBITS = 8


@dataclass(frozen=True)
class Section:
    """A section of an ELF file: its name and its bytes."""

    name: str
    content: memoryview


@dataclass(frozen=True)
class Image:
    """One image of a container. ``architecture`` is 70 for sm_70; ``payload`` is still packed."""

    kind: Kind
    architecture: int
    packing: Literal["lz4", "zstd"] | None
    payload: memoryview
    unpacked_bytes: int

    def unpack(self) -> bytes:
        """The PTX or the cubin itself.

        Raises FormatError if the payload doesn't unpack to the promised size,
        and ToolError if it is zstd and this Python can't read that.
        """
        unpackers = {"lz4": unpack_lz4, "zstd": _unpack_zstd}
        if self.packing is None:
            return bytes(self.payload)
        return unpackers[self.packing](self.payload, self.unpacked_bytes)


@dataclass(frozen=True)
class Kernel:
    """A kernel's mangled name and the bytes of machine code that it has."""

    name: str
    code_bytes: int


@dataclass(frozen=True)
class MachineCode:
    """What a file holds for one architecture: how many cubins, and every kernel in them."""

    images: int
    kernels: tuple[Kernel, ...]

    def named(self, part: str) -> list[Kernel]:
        """The kernels with ``part`` in their names."""
        return [kernel for kernel in self.kernels if part in kernel.name]


def images(path: Path) -> list[Image]:
    """The images in a shared library, a program or an object file (``.cu.o``), in their order.

    An ELF file without ``.nv_fatbin`` has none. Only headers are read. Raises
    FormatError if the file is no 64-bit ELF file with section headers, or if
    what stands in the section is not made of whole containers.
    """
    content = _mapped(path)
    return [
        image
        for section in sections(content, str(path))
        if section.name == SECTION
        for image in _images(section.content, f"{path}: {SECTION}")
    ]


def machine_code(path: Path, architectures: Collection[int] = ()) -> dict[int, MachineCode]:
    """What a file holds for each architecture that it has machine code for. PTX doesn't count.

    ``architectures`` are those to read, all of them if none are given. Raises what
    ``images`` and ``Image.unpack`` raise, and FormatError if a cubin is not one for
    the architecture that its entry names.
    """
    counts: dict[int, int] = {}
    found: dict[int, list[Kernel]] = {}
    for number, image in enumerate(images(path)):
        if image.kind == "cubin" and (not architectures or image.architecture in architectures):
            counts[image.architecture] = counts.get(image.architecture, 0) + 1
            in_it = kernels(image.unpack(), image.architecture, f"{path}: image {number}")
            found.setdefault(image.architecture, []).extend(in_it)
    return {
        architecture: MachineCode(counts[architecture], tuple(found[architecture]))
        for architecture in sorted(counts)
    }


def kernels(cubin: bytes, architecture: int, where: str) -> list[Kernel]:
    """The kernels of a cubin that have code; raises FormatError if it isn't one for ``architecture``."""
    content = memoryview(cubin)
    found = [
        Kernel(section.name.removeprefix(CODE_PREFIX), len(section.content))
        for section in sections(content, where)
        if section.name.startswith(CODE_PREFIX) and len(section.content)
    ]
    header = ELF_HEADER.unpack_from(content)
    machine, flags, abi = header[2], header[7], header[0][8]
    if machine != EM_CUDA:
        raise _damaged(where, "its entry says cubin, and it is an ELF file for another processor")
    stated = flags >> 8 & 0xFF if abi >= 8 else flags & 0xFF  # CUDA 13 moved it by a byte
    if stated != architecture:
        raise _damaged(where, f"its entry says sm_{architecture}, the cubin itself sm_{stated}")
    return found


def sections(content: memoryview, where: str) -> Iterator[Section]:
    """The sections of an ELF file with their bytes; raises FormatError if it isn't whole."""
    if content[:4] != ELF_MAGIC or content[4:6] != CLASS_64_LITTLE_ENDIAN:
        raise FormatError(
            where, "it is not a 64-bit ELF file", "give a Linux program, a shared library or an object file"
        )
    try:
        *_, offset, _, _, _, _, size, count, names = ELF_HEADER.unpack_from(content)
        if not offset or size != ELF_SECTION.size:
            raise FormatError(
                where,
                "its section headers were stripped, so what it holds for a GPU can't be found",
                "read the file before it is stripped to that degree; plain 'strip' keeps them",
            )
        first = ELF_SECTION.unpack_from(content, offset)
        count, names = count or first[5], first[6] if names == 0xFFFF else names  # more than 65279 of them
        headers = [ELF_SECTION.unpack_from(content, offset + size * index) for index in range(count)]
        texts = bytes(_cut(content, headers[names][4], headers[names][5], where))
        for name, kind, _, _, begin, length, *_ in headers:
            title = texts[name : texts.index(b"\0", name)].decode("utf-8", "replace")
            yield Section(title, _cut(content, begin, 0 if kind == SHT_NOBITS else length, where))
    except (struct.error, IndexError, ValueError, OverflowError):
        raise _damaged(where, "its section headers point outside of the file") from None


def unpack_lz4(packed: memoryview, size: int) -> bytes:
    """Unpack one LZ4 block (github.com/lz4/lz4, doc/lz4_Block_format.md) of ``size`` unpacked bytes.

    Raises FormatError if the block isn't whole or gives another size.
    """
    data = bytes(packed)
    out = bytearray()
    place = 0
    try:
        while place < len(data):
            token = data[place]
            length, place = _length(data, place + 1, token >> 4)
            out += data[place : place + length]
            place += length
            if place >= len(data):
                break  # the last sequence has no match
            distance = data[place] | data[place + 1] << 8
            length, place = _length(data, place + 2, token & 15)
            length += 4
            begin = len(out) - distance
            if distance == 0 or begin < 0 or len(out) > size:
                raise IndexError
            piece = out[begin : begin + length]
            out += piece if len(piece) == length else (piece * (length // distance + 1))[:length]
    except IndexError:
        raise _damaged(SECTION, "an LZ4 block in it is broken") from None
    if len(out) != size:
        raise _damaged(SECTION, f"an LZ4 block in it has {len(out)} bytes instead of {size}")
    return bytes(out)


def _length(data: bytes, place: int, nibble: int) -> tuple[int, int]:
    """A length of the LZ4 format and the place after it: 15 means that more bytes are to be added."""
    length = nibble
    while nibble == 15:
        more = data[place]
        length, place = length + more, place + 1
        if more != 255:
            break
    return length, place


def _unpack_zstd(packed: memoryview, size: int) -> bytes:
    """Unpack a zstd frame with Python's own module (3.14 and later) or the package zstandard."""
    zstd = _zstd()
    try:
        unpacked = bytes(zstd.decompress(bytes(packed)))
    except zstd.ZstdError as error:
        raise _damaged(SECTION, f"a zstd frame in it is broken: {error}") from None
    if len(unpacked) != size:
        raise _damaged(SECTION, f"a zstd frame in it has {len(unpacked)} bytes instead of {size}")
    return unpacked


def _zstd() -> Any:
    """A module with ``decompress`` and ``ZstdError``."""
    with suppress(ImportError):
        from compression import zstd

        return zstd
    with suppress(ImportError):
        import zstandard

        return zstandard
    raise ToolError(
        SECTION,
        "its images are packed with zstd, which this Python can't read by itself",
        "'pip install zstandard', or have nvcc use -compress-mode=none "
        "(llama.cpp: -DGGML_CUDA_COMPRESSION_MODE=none)",
    )


def _images(content: memoryview, where: str) -> Iterator[Image]:
    """The images of the containers that stand one after another in a section, zeros between them."""
    place = 0
    while place < len(content):
        if len(content) - place < CONTAINER.size:
            if any(content[place:]):
                raise _damaged(where, f"{len(content) - place} bytes at its end are no container")
            return
        magic, _, header, length = CONTAINER.unpack_from(content, place)
        if magic == CONTAINER_MAGIC and header >= CONTAINER.size:
            yield from _entries(_cut(content, place + header, length, where), where)
            place += header + length
        elif any(content[place : place + 8]):
            raise _damaged(where, f"what stands at byte {place} is no container")
        else:
            place += 8


def _entries(content: memoryview, where: str) -> Iterator[Image]:
    """The images of one container."""
    place = 0
    while place < len(content):
        if len(content) - place < ENTRY.size:
            raise _damaged(where, "an entry in it is cut off")
        kind, _, header, padded, packed, architecture, flags, unpacked = ENTRY.unpack_from(content, place)
        if header < ENTRY.size:
            raise _damaged(where, "an entry in it is shorter than its own header")
        payload = _cut(content, place + header, padded, where)
        packing: Literal["lz4", "zstd"] | None = "lz4" if flags & LZ4 else "zstd" if flags & ZSTD else None
        yield Image(
            kind=KINDS.get(kind, "other"),
            architecture=architecture,
            packing=packing,
            payload=_cut(payload, 0, packed, where) if packing else payload,
            unpacked_bytes=unpacked if packing else padded,
        )
        place += header + padded


def _mapped(path: Path) -> memoryview:
    """A file's bytes without reading them all; the mapping lives as long as the view."""
    with path.open("rb") as file:
        try:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:
            return memoryview(b"")  # an empty file can't be mapped


def _cut(content: memoryview, begin: int, length: int, where: str) -> memoryview:
    """A part of ``content``; raises FormatError if it reaches beyond the end."""
    if begin + length > len(content):
        raise _damaged(where, "it says that it is longer than the file is")
    return content[begin : begin + length]


def _damaged(where: str, reason: str) -> FormatError:
    return FormatError(where, reason, "the file is damaged, or made by a CUDA that is not known yet")
