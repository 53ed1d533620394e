"""An HF checkpoint as an f16 GGUF, by llama.cpp's own converter."""

from __future__ import annotations

import tempfile
from pathlib import Path

from reproquant.errors import FormatError
from reproquant.gguf.inspect import require_type
from reproquant.model.manifest import Manifest
from reproquant.toolchain.interpreter import Interpreter
from reproquant.toolchain.llama_cpp import SourceTree

MODEL_CARD = "README.md"


def convert(manifest: Manifest, source: SourceTree, converter: Interpreter, target: Path, log: Path) -> None:
    """Write the checkpoint as an f16 GGUF named ``manifest.name`` in its metadata.

    The same checkpoint files and name give the same bytes. The converter reads
    metadata from the directory's name and the model card as well: it is shown a
    directory that is named after the model and links the manifest's files, all
    but the card, which differs between copies of the same weights.

    Raises ToolError with the converter's last lines if it fails, and FormatError
    if what it left is no f16 GGUF.
    """
    with tempfile.TemporaryDirectory(prefix=".convert-", dir=target.parent) as scratch:
        checkpoint = Path(scratch) / manifest.name
        _link(manifest, checkpoint)
        script = source.root / "convert_hf_to_gguf.py"
        options = ["--outtype", "f16", "--model-name", manifest.name, "--outfile", target]
        environment = {
            "PYTHONPATH": str(source.root / "gguf-py"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
        }
        converter.run([script, checkpoint, *options], log, environment)
    require_type(target, "f16")


def _link(manifest: Manifest, directory: Path) -> None:
    for file in manifest.files:
        if file.path == MODEL_CARD:
            continue
        link = directory / file.path
        if directory not in link.parents or ".." in link.parts:
            raise FormatError(
                file.path, "the manifest lists a path outside of its checkpoint", "make the model again"
            )
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((manifest.directory / file.path).resolve())
