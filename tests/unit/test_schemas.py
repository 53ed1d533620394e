"""The schemas in workflow/schemas are those of the models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from reproquant.files import repository


def test_the_exported_schemas_are_those_of_the_models(tmp_path: Path) -> None:
    script = repository() / "scripts/export_schemas.py"
    subprocess.run([sys.executable, script, "--target", tmp_path], check=True)
    kept = repository() / "workflow/schemas"
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in kept.iterdir()}
    for path in tmp_path.iterdir():
        assert path.read_text() == (kept / path.name).read_text(), f"{path.name} is old: run 'make schemas'"
