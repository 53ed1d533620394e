"""Render the report from the study's results."""

from pathlib import Path

from reproquant import program
from reproquant.report import build
from reproquant.stage import stage


def main(study: Path, recipe: str, log: Path, output: Path, results: list[Path]) -> None:
    with stage("report", study, recipe, log, results, output) as run:
        for name in ("index.html", "report.md", "claims.json"):
            run.scratch(output.with_name(name))
        run.scratch(output)
        build(study.parent, run.folder)


if __name__ == "__main__":
    program.run(main)
