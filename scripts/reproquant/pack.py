"""A package's Python files and its metadata as a zip: run as a program by the Python that has it installed.

``python -I pack.py NAME`` writes to its standard output, as the wheel's paths
are. Nothing of the package is imported.
"""

from __future__ import annotations

import importlib.util
import io
import pathlib
import sys
import zipfile


def packed(folder: pathlib.Path, name: str) -> bytes:
    """A zip of ``name``'s modules and of the metadata beside it in ``folder``."""
    files = [*(folder / name).rglob("*.py"), *folder.glob(f"{name}*.dist-info/METADATA")]
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files):
            archive.write(file, file.relative_to(folder).as_posix())
    return target.getvalue()


if __name__ == "__main__":
    spec = importlib.util.find_spec(sys.argv[1])
    if spec is None or spec.origin is None:
        sys.exit(f"there is no package {sys.argv[1]}")
    sys.stdout.buffer.write(packed(pathlib.Path(spec.origin).parent.parent, sys.argv[1]))
