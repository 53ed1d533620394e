"""What is told of a finished FP8 checkpoint, whoever made it."""

from __future__ import annotations

import hashlib
import resource
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproquant.files import sha256_file
from reproquant.fp8.calibrate import Calibration
from reproquant.fp8.shards import bytes_of, read
from reproquant.fp8.source import LINEARS, Source, headers


def facts(
    source: Source, target: Path, calibration: Calibration, rows: Tensor, started: float
) -> dict[str, Any]:
    """Of the checkpoint in ``target``, made since ``started`` by this process from the ``rows`` observed."""
    return {
        **_written(target),
        "layers": source.decoder.layers,
        "linears": source.decoder.layers * len(LINEARS),
        "source_bytes": source.bytes,
        "source_dtype": source.dtype,
        "calibration": {
            "form": calibration.form,
            "rows": len(rows),
            "row_tokens": calibration.row_tokens,
            "seed": calibration.seed,
            "text_sha256": sha256_file(calibration.text),
            "tokens_sha256": hashlib.sha256(bytes_of(rows)).hexdigest(),
        },
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - started, 1),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _written(target: Path) -> dict[str, Any]:
    """The bytes of all tensors, and the smallest, median and largest scale of weights and inputs."""
    tensors = headers(target)
    found: dict[str, Any] = {"bytes": sum(tensor.bytes for tensor in tensors.values())}
    for kind in ("weight_scale", "input_scale"):
        scales = sorted(read(tensor).item() for name, tensor in tensors.items() if name.endswith(f".{kind}"))
        if scales:
            found[kind] = {"min": scales[0], "median": scales[len(scales) // 2], "max": scales[-1]}
    return found
