"""What a Python has installed, as JSON: a program for that Python itself and its standard library.

``python -I freeze.py`` prints the packages; ``python -I freeze.py torch`` what
its torch was compiled for, which takes the seconds of importing torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from typing import Any

METADATA = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}
HEAD_BYTES = 4096


def frozen(path: list[str], base_prefix: str) -> dict[str, Any]:
    """The version of every distribution on ``path``, the first of a name as imports find it.

    ``records`` has, where a package has a RECORD, a sha256 over its lines that
    tell a file's sha256. Lines of files outside of the package's own folder
    (command line wrappers) depend on where that folder lies and are left out.
    ``conda`` names what conda installed, whether Python or not.
    """
    packages: dict[str, str] = {}
    records: dict[str, str] = {}
    for folder in path:
        for info in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            found = _name_and_version(os.path.join(folder, info))
            if found and found[0] not in packages:
                packages[found[0]] = found[1]
                record = os.path.join(folder, info, "RECORD")
                if os.path.isfile(record):
                    records[found[0]] = _digest(record)
    conda = os.path.join(base_prefix, "conda-meta")
    names = sorted(os.listdir(conda)) if os.path.isdir(conda) else []
    return {
        "python": platform.python_version(),
        "packages": packages,
        "records": records,
        "conda": [name[: -len(".json")] for name in names if name.endswith(".json")],
    }


def torch() -> dict[str, Any]:
    """Version of torch, the CUDA that it was built with, and the GPUs that it has machine code for."""
    import torch

    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)() or ""
    return {"version": torch.__version__, "cuda": torch.version.cuda, "architectures": flags.split()}


def _name_and_version(info: str) -> tuple[str, str] | None:
    """Name (as PEP 503 normalizes it) and version, from the head of a distribution's metadata."""
    file = METADATA.get(os.path.splitext(info)[1])
    if file is None:
        return None
    place = os.path.join(info, file) if os.path.isdir(info) else info
    try:
        with open(place, encoding="utf-8", errors="replace") as metadata:
            head = metadata.read(HEAD_BYTES).partition("\n\n")[0]
    except OSError:
        return None
    fields = dict(re.findall(r"^(Name|Version): *(\S+)", head, re.MULTILINE))
    if len(fields) < 2:
        return None
    return re.sub(r"[-_.]+", "-", fields["Name"]).lower(), fields["Version"]


def _digest(record: str) -> str:
    with open(record, "rb") as file:
        lines = [line.strip() for line in file]
    kept = sorted(line for line in lines if b",sha256=" in line and not line.startswith((b"../", b'"../')))
    return hashlib.sha256(b"\n".join(kept)).hexdigest()


if __name__ == "__main__":
    print(json.dumps(torch() if "torch" in sys.argv else frozen(sys.path, sys.base_prefix)))
