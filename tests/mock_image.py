"""A container image without a registry: this Python, aiohttp, and the mock token server as a MOCK of vLLM.

The image's ``vllm`` is no vLLM. Its version is ``0.0+mock``, and its command
line serves with tests/mock_server.py or writes made-up latencies.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERSION = "0.0+mock"
LEFT_OUT = (
    "site-packages",
    "__pycache__",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "*.a",
)
LATENCIES = {1: 0.060, 16: 0.150}
"""What the mock's ``bench latency`` writes, in seconds, by output tokens: the mock server's own timing."""

MAIN = f'''
"""A MOCK of vLLM's command line; see tests/mock_image.py of reproquant."""
import json, os, runpy, sys
LATENCIES = {LATENCIES!r}
def value(flag):
    return sys.argv[sys.argv.index(flag) + 1]
if sys.argv[1] == "serve":
    model = sys.argv[2]
    sizes = {{name: os.path.getsize(os.path.join(model, name)) for name in sorted(os.listdir(model))}}
    try:
        open(os.path.join(model, "model.safetensors"), "r+b").close()
        print("MOCK sees", sizes, "writable", flush=True)
    except OSError:
        print("MOCK sees", sizes, "read-only", flush=True)
    print("MOCK has", {{name: os.environ[name] for name in ("VLLM_X", "HF_HUB_OFFLINE")}}, flush=True)
    sys.argv = ["mock_server", "--port", value("--port")]
    runpy.run_path("/mock/mock_server.py", run_name="__main__")
else:
    tokens, times = int(value("--output-len")), int(value("--num-iters"))
    with open(value("--output-json"), "w") as file:
        json.dump({{"latencies": [LATENCIES[tokens]] * times}}, file)
'''


def write(tar: Path) -> None:
    """Write the image's files as a tar that ``podman import`` and ``docker import`` take."""
    root = tar.with_suffix(".root")
    for folder in ("tmp", "etc", "checkpoint", "results", "program"):
        (root / folder).mkdir(parents=True)
    python = Path(sys.executable).resolve()
    stdlib = Path(os.__file__).parent
    asked = [python, "-I", "-c", "import site; print(site.getsitepackages()[0])"]
    own = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    site = _place(root, Path(own))
    shutil.copytree(stdlib, _place(root, stdlib), ignore=shutil.ignore_patterns(*LEFT_OUT))
    _copy(python, root)
    _place(root, Path("/usr/bin")).mkdir(parents=True, exist_ok=True)
    (root / "usr/bin/python3").symlink_to(python)
    for name in _needs("aiohttp"):
        _install(name, site)
    _install_mock(site)
    (root / "mock").mkdir()
    shutil.copy(Path(__file__).with_name("mock_server.py"), root / "mock")
    for library in sorted({library for file in _machine_code(root) for library in _libraries(file)}):
        _copy(library, root)
    subprocess.run(["tar", "-C", root, "-cf", tar, "."], check=True)
    shutil.rmtree(root)


def _install_mock(site: Path) -> None:
    command = site / "vllm/entrypoints/cli"
    command.mkdir(parents=True)
    (command / "main.py").write_text(MAIN)
    (site / "vllm/__init__.py").write_text("LLM = None\n")
    info = site / f"vllm-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\nSummary: a mock\n"
    )


def _needs(name: str) -> set[str]:
    """A distribution and all that it requires here."""
    found, queue = set(), [name]
    while queue:
        if (one := queue.pop()) not in found:
            try:
                required = importlib.metadata.requires(one) or []
            except importlib.metadata.PackageNotFoundError:
                continue
            found.add(one)
            queue += [re.split(r"[^\w.-]", text)[0] for text in required if "extra ==" not in text]
    return found


def _install(name: str, site: Path) -> None:
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        if ".." not in file.parts and file.suffix != ".pyc":
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(distribution.locate_file(file)), site / file)


def _machine_code(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF":
            yield path


def _libraries(file: Path) -> list[Path]:
    said = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", said)]


def _copy(file: Path, root: Path) -> None:
    target = _place(root, file)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)


def _place(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")
