"""`reproquant doctor`: the table for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.console import Console
from rich.table import Table

from reproquant.doctor import as_data, examine, read
from reproquant.doctor.check import Check
from reproquant.study import Study

COLOURS = {"ok": "green", "unknown": "dim", "warning": "yellow", "impossible": "bold red"}


def doctor(
    studies: Annotated[
        list[Path] | None, typer.Argument(help="study files, laid over config.yaml in this order")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs instead of text")] = False,
) -> None:
    """Say what this machine lacks for a study, and what to do: exit 0 possible, 2 impossible."""
    study = Study.of_files(studies or [])
    reading = read(study, Path("results") / study.name)
    checks = examine(study, reading)
    if as_json:
        print(json.dumps(as_data(study, checks, reading), indent=1, ensure_ascii=False))
    else:
        show(checks, sys.stdout)
    if any(check.verdict == "impossible" for check in checks):
        raise typer.Exit(2)


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
