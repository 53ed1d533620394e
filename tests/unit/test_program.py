"""Programs outside of a stage end a known failure as stages do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reproquant.files import repository


@pytest.mark.parametrize(
    "words",
    [
        ("check_vllm", "--source", "{here}/no.whl"),
        ("seal", "--study", "{here}/study.json", "--output", "{here}/root.json"),
        ("doctor", "--study", "{here}/study.json", "--running", "report", "--output", "{here}/doctor.json"),
        ("bundle", "--target", "{here}/no.yaml", "--folder", "{here}/bundle"),
        ("unbundle", "--folder", "{here}"),
        ("bundle", "--target", "workflow/targets/h200.yaml", "--folder", "{here}/a-file/bundle"),
    ],
    ids=lambda words: words[0],
)
def test_a_known_failure_is_three_lines_and_exit_code_2(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    name, *options = (word.format(here=tmp_path) for word in words)
    command = [sys.executable, f"scripts/{name}.py", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository(), check=False)
    first, second, third = done.stderr.splitlines()
    assert first.startswith(f"error: {tmp_path}") and done.returncode == 2
    assert second.startswith("  why: ") and third.startswith("  do:  ")
