"""Render the report from the study's results."""

from pathlib import Path

from reproquant import program
from reproquant.report import build
from reproquant.stage import stage


def main(study: Path, recipe: str, log: Path, output: Path, results: list[Path]) -> None:
    with stage("report", study, recipe, log, results, output) as run:
        for page in (output.with_name("index.html"), output.with_name("report.md"), output):
            run.scratch(page)
        build(study.parent, run.folder)


if __name__ == "__main__":
    program.run(main)
