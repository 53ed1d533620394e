from __future__ import annotations

import json
from pathlib import Path

import pytest

from reproquant.errors import FormatError
from reproquant.fp8 import checkpoint
from reproquant.model.manifest import Manifest
from reproquant.study import Calibration, Fp8
from reproquant.toolchain.python_env import PythonEnv


def test_a_quantized_checkpoint_is_refused_before_the_torch_environment_is_needed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    manifest = Manifest("quantized", tmp_path, {}, ())
    settings = Fp8(
        activation_scales="corrected",
        calibration=Calibration(text="workflow/data/calibration.txt", rows=1, row_tokens=8),
    )
    absent = PythonEnv("fp8", tmp_path / "no-environment", "0" * 64)
    with pytest.raises(FormatError, match=r"quantized already \(fp8\)"):
        checkpoint.make(
            manifest, settings, absent, tmp_path / "target", tmp_path / "unfinished", tmp_path / "log", print
        )
    assert not (tmp_path / "target").exists()
