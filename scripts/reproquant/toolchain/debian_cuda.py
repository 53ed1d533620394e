"""CUDA 12.4 out of Debian's packages, unpacked into a folder and not installed.

It is the newest CUDA that can compile for sm_70 and comes from a distribution.
Installing it would pull in Debian 13's C library; the tools themselves need
only glibc 2.7, so unpacking them is enough on any Linux that has ``apt``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from reproquant import process
from reproquant.errors import DownloadError, ToolError
from reproquant.files import CHUNK_BYTES, locked, store, write_json, write_text
from reproquant.toolchain.cmake import find_cuda

SUITE, COMPONENTS = "trixie", "main non-free"
PACKAGES = (
    "nvidia-cuda-toolkit",
    "nvidia-cuda-dev",
    "libnvvm4",
    "libcudart12",
    "libcublas12",
    "libcublaslt12",
    "libcu++-dev",
    "libcub-dev",
    "libthrust-dev",
)

PLACES = (
    (r"usr/lib/nvidia-cuda-toolkit/bin/cicc", "nvvm/bin/cicc"),
    (r"usr/lib/nvidia-cuda-toolkit/libdevice/(.+)", r"nvvm/libdevice/\1"),
    (r"usr/lib/nvidia-cuda-toolkit/bin/(nvcc|crt/.+)", r"bin/\1"),
    (r"usr/bin/(?!nvcc$)(.+)", r"bin/\1"),
    (r"usr/include/(.+)", r"include/\1"),
    (r"usr/lib/x86_64-linux-gnu/((?!.*\.a$).+|lib(?:cudart_static|cudadevrt|culibos)\.a)", r"lib64/\1"),
)
"""Where Debian has a file and where NVIDIA's own layout has it; what matches no row is left out.

That is documentation, samples, and static libraries of 1.7 GB.
"""

PROFILE = """\
TOP = $(_HERE_)/..
CICC_PATH = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(CICC_PATH):$(_HERE_):
LD_LIBRARY_PATH += $(TOP)/lib64:
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"
"""
"""nvcc.profile, which tells nvcc where its parts are: beside itself."""


def lay_out(log: Path) -> Path:
    """The root of the toolkit, in the store; fetched (1.26 GB) and unpacked once.

    Raises DownloadError if this machine has no entry for Debian's packages or
    they can't be had, and ToolError if what came can't compile for sm_70.
    """
    place = store() / "toolkits" / f"debian-{SUITE}-cuda"
    with locked(place.with_name(f"{place.name}.lock")):
        if not place.is_dir():
            partial = place.with_name(f"{place.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            archives = _fetch(partial / "apt", log)
            root = partial / "root"
            for archive in archives:
                _unpack(archive, root)
            write_text(root / "bin" / "nvcc.profile", PROFILE)
            write_json(root / "packages.json", sorted(archive.name for archive in archives))
            find_cuda(str(root), (70,))
            root.rename(place)
            shutil.rmtree(partial)
    return place


def source_list(entries: Iterable[str]) -> str:
    """An apt source of ``SUITE``, made from the texts of this machine's own sources.

    The first entry for Debian's ``main`` (not its updates alone, not its security
    archive) is taken, in either of apt's formats, with address and key as they
    stand. Raises DownloadError if there is none.
    """
    for text in entries:
        for stanza in re.split(r"\n\s*\n", _in_stanzas(text)):
            fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.+)$", stanza, re.MULTILINE))
            suites = fields.get("Suites", "").split()
            if "deb" in fields.get("Types", "").split() and _is_debian_main(fields, suites):
                keep = {
                    key: fields[key] for key in ("Types", "URIs", "Signed-By", "Trusted") if key in fields
                }
                made = {**keep, "Types": "deb", "Suites": SUITE, "Components": COMPONENTS}
                return "".join(f"{key}: {value}\n" for key, value in made.items())
    raise DownloadError(
        "/etc/apt",
        "there is no source of Debian's main archive from which one of Debian 13 could be made",
        "install CUDA 12 from NVIDIA and give its root as llama_cpp.cuda_toolkit",
    )


def _is_debian_main(fields: dict[str, str], suites: list[str]) -> bool:
    named = any(re.fullmatch(r"[a-z]+", suite) for suite in suites)
    return (
        named
        and "main" in fields.get("Components", "").split()
        and re.search(r"/debian(\.list)?/?$", fields.get("URIs", "")) is not None
    )


def _in_stanzas(text: str) -> str:
    """A source's text in apt's stanza format (deb822), whichever of the two it was written in."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    one_line = re.compile(r"deb\s+(?:\[([^]]*)]\s+)?(\S+)\s+(\S+)\s+(.+)")
    stanzas = []
    for line in lines:
        if match := one_line.fullmatch(line.strip()):
            options, address, suite, components = match.groups()
            signed = re.search(r"signed-by=(\S+)", options or "")
            key = f"Signed-By: {signed.group(1)}\n" if signed else ""
            stanzas.append(f"Types: deb\nURIs: {address}\nSuites: {suite}\nComponents: {components}\n{key}")
    return "\n\n".join(stanzas) if stanzas else "\n".join(lines)


def _fetch(folder: Path, log: Path) -> list[Path]:
    """Download the packages with an apt that knows this one source and keeps its state in ``folder``."""
    configured = Path("/etc/apt")
    files = [*sorted(configured.glob("sources.list.d/*.sources")), configured / "sources.list"]
    files += sorted(configured.glob("sources.list.d/*.list"))
    source = folder / "made.sources"
    write_text(source, source_list(file.read_text(encoding="utf-8") for file in files if file.is_file()))
    for name in ("lists/partial", "cache/archives/partial", "debs"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    options = {
        "Dir::Etc::sourcelist": source,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    apt = [
        "apt-get",
        "--quiet",
        *(word for key, value in options.items() for word in ("-o", f"{key}={value}")),
    ]
    try:
        process.run([*apt, "update"], log)
        process.run([*apt, "download", *PACKAGES], log, cwd=folder / "debs")
    except ToolError as error:
        remedy = "check the network and apt's sources, or install CUDA 12 from NVIDIA"
        raise DownloadError("Debian's CUDA packages", error.reason, remedy) from None
    return sorted((folder / "debs").iterdir())


def _unpack(archive: Path, root: Path) -> None:
    """Unpack what of a Debian package belongs to a toolkit, each file at its place."""
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as members,
    ):
        members.extraction_filter = getattr(tarfile, "fully_trusted_filter", lambda member, _: member)
        for member in members:
            place = _place(member.name.removeprefix("./"))
            if place and not member.isdir():
                member.name = place
                members.extract(member, root)
        while unpacking.stdout and unpacking.stdout.read(CHUNK_BYTES):
            pass  # the padding: dpkg-deb must come to its end
    if unpacking.returncode:
        raise ToolError(archive, "dpkg-deb can't unpack it", "delete it and run again")


def _place(name: str) -> str | None:
    """Where NVIDIA's layout has a file of Debian's; None for what isn't needed."""
    for pattern, place in PLACES:
        if match := re.fullmatch(pattern, name):
            return match.expand(place)
    return None
