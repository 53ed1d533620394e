"""`reproquant doctor`: the table for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.table import Table

from reproquant.doctor import as_data, examine, read
from reproquant.doctor.check import Check
from reproquant.study import Study

COLOURS = {"ok": "green", "unknown": "dim", "warning": "yellow", "impossible": "bold red"}


def doctor(studies: Sequence[Path], as_json: bool) -> bool:
    """Examine this machine for the study of these files; print what was found; whether it is possible."""
    study = Study.of_files(studies)
    reading = read(study, Path("results") / study.name)
    checks = examine(study, reading)
    if as_json:
        print(json.dumps(as_data(study, checks, reading), indent=1, ensure_ascii=False))
    else:
        show(checks, sys.stdout)
    return all(check.verdict != "impossible" for check in checks)


def show(checks: Sequence[Check], file: IO[str]) -> None:
    """Print the table to a file or terminal; remedies stand below what needs one."""
    table = Table("check", "", "found", "needed", show_lines=False, pad_edge=False)
    for check in checks:
        style = COLOURS[check.verdict]
        table.add_row(check.name, f"[{style}]{check.verdict}[/]", _plain(check.found), _plain(check.needed))
        if check.remedy:
            table.add_row("", "", f"[{style}]do:[/] {_plain(check.remedy)}", "")
    terminal = file.isatty()
    Console(file=file, width=None if terminal else 160).print(table)


def _plain(text: str) -> str:
    """Text in which brackets are brackets."""
    return text.replace("[", "\\[")
