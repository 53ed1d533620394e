"""Make the W8A8 checkpoint: the main environment's side of both backends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reproquant.files import read_json, repository
from reproquant.fp8.source import Source
from reproquant.model.manifest import Manifest
from reproquant.study import Fp8
from reproquant.toolchain import autofp8
from reproquant.toolchain.interpreter import Interpreter


def make(
    manifest: Manifest,
    settings: Fp8,
    environment: Interpreter,
    target: Path,
    unfinished: Path,
    log: Path,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Write the manifest's checkpoint as W8A8 into the folder ``target``, in AutoFP8's layout.

    ``environment`` is that of the study's ``fp8_role``. If ``unfinished`` and ``target``
    hold what a killed run of the same work left, the native backend goes on with it.
    ``tell`` gets lines of progress.

    Returns what was done: layers and Linears, bytes, dtypes, the calibration,
    the smallest, median and largest scales, seconds and peak memory. Raises
    FormatError, before torch is started, for a checkpoint that can't be
    quantized (see ``Source.load``), and ToolError with the quantizer's last
    lines if it fails, or what ``autofp8.checkout`` raises.
    """
    source = Source.load(manifest.directory)
    calibration = settings.calibration
    with TemporaryDirectory() as scratch:
        facts = Path(scratch) / "facts.json"
        options: dict[str, object] = {
            "--source": source.directory,
            "--target": target,
            "--calibration": repository() / calibration.text,
            "--form": calibration.form,
            "--rows": calibration.rows,
            "--row-tokens": calibration.row_tokens,
            "--activation-scheme": settings.activation_scheme,
            "--facts": facts,
            **({} if calibration.seed is None else {"--seed": calibration.seed}),
        }
        if settings.backend == "autofp8":
            module = "reproquant.fp8.autofp8"
            options["--autofp8"] = autofp8.checkout(settings.autofp8_repository, log)
        else:
            module = "reproquant.fp8.quantize"
            options |= {
                "--unfinished": unfinished,
                "--device": settings.device,
                "--activation-scales": settings.activation_scales,
                "--fused-scales": settings.fused_scales,
            }
        flat = [word for pair in options.items() for word in pair]
        environment.run_module(module, flat, log, tell)
        return dict(read_json(facts))
