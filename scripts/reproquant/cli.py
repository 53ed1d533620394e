"""`reproquant`: what a person asks of a study outside of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from reproquant.errors import ReproquantError
from reproquant.files import read_json
from reproquant.study import Study

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


@app.callback()
def main() -> None:
    """Ask about a study's results."""


@app.command()
def subjects(study: Annotated[Path, typer.Argument(help="results/NAME/study.json")]) -> None:
    """List the subjects of a study with the status of those that were measured."""
    try:
        for subject in Study.load(study).subjects:
            measured = study.parent / "bench" / f"{subject.name}.json"
            status = read_json(measured)["status"] if measured.is_file() else "not measured"
            print(f"{subject.name:24} {subject.engine:10} {subject.artifact:12} {status}")
    except ReproquantError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
