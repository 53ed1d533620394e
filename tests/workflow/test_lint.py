"""Snakemake's own linter, with the exceptions that have a reason."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from reproquant.files import repository

EXCEPTIONS = {
    "Specify a conda environment or container for each rule.": (
        "environments are artifacts of the workflow: built from hashed locks, and part of each recipe"
    ),
}


def test_the_linter_finds_nothing_but_the_exceptions() -> None:
    snakemake = Path(sys.executable).with_name("snakemake")
    done = subprocess.run(
        [snakemake, "--lint"], cwd=repository(), capture_output=True, text=True, check=False
    )
    found = re.findall(r"^    \* (.*):$", done.stderr, re.MULTILINE)
    assert found, "the linter looked at nothing"
    assert set(found) <= set(EXCEPTIONS)
