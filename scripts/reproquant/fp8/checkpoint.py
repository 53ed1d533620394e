"""Make the W8A8 checkpoint: the main environment's side of ``reproquant.fp8.quantize``."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reproquant.files import read_json, repository
from reproquant.fp8.source import Source
from reproquant.model.manifest import Manifest
from reproquant.study import Fp8
from reproquant.toolchain.interpreter import Interpreter


def make(
    manifest: Manifest, settings: Fp8, environment: Interpreter, target: Path, log: Path
) -> dict[str, Any]:
    """Write the manifest's checkpoint as W8A8 into the folder ``target``, in AutoFP8's layout.

    Returns what was done: layers and Linears, bytes, dtypes, the calibration,
    the smallest, median and largest scales, seconds and peak memory. Raises
    FormatError, before torch is started, for a checkpoint that can't be
    quantized (see ``Source.load``), and ToolError with the quantizer's last
    lines if it fails.
    """
    source = Source.load(manifest.directory)
    calibration = settings.calibration
    with TemporaryDirectory() as scratch:
        facts = Path(scratch) / "facts.json"
        arguments = {
            "--source": source.directory,
            "--target": target,
            "--calibration": repository() / calibration.text,
            "--rows": calibration.rows,
            "--row-tokens": calibration.row_tokens,
            "--activation-scales": settings.activation_scales,
            "--fused-scales": settings.fused_scales,
            "--activation-scheme": settings.activation_scheme,
            "--facts": facts,
        }
        flat = [word for pair in arguments.items() for word in pair]
        environment.run_module("reproquant.fp8.quantize", flat, log)
        return dict(read_json(facts))
