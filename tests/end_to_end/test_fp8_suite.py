"""tests/fp8 needs torch, so it runs with the FP8 environment's Python."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

from reproquant.files import repository
from reproquant.toolchain import python_env

WITH_OUR_PYTEST = """
import sys
sys.path.append(sys.argv[1])  # behind the environment's own packages
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", sys.argv[2]]))
"""


def test_the_fp8_writers_own_tests_pass_in_its_environment(tmp_path: Path) -> None:
    environment = python_env.ensure("fp8", tmp_path / "log")
    done = subprocess.run(
        [environment.python, "-c", WITH_OUR_PYTEST, sysconfig.get_path("purelib"), "tests/fp8"],
        cwd=repository(),
        env={**os.environ, "PYTHONPATH": str(repository() / "scripts")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
