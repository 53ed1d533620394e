"""Take one plot out of a report's page as an SVG file of its own, in the page's colours."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import typer

from reproquant.errors import FormatError, ReproquantError
from reproquant.files import write_text

WIDTH = 640
FONT = "font-family: system-ui, sans-serif"
PLOT = re.compile(r'<svg [^>]*data-plot="(?P<name>[^"]+)".*?</svg>', re.DOTALL)
COLOURS = re.compile(
    r":root \{\s*color-scheme[^}]*\}|@media \(prefers-color-scheme: dark\) \{\s*:root \{[^}]*\}\s*\}"
)


def standalone(page: str, name: str) -> str:
    """The plot called ``name`` of a report's index.html, with the page's light and dark colours in it.

    Raises FormatError, which lists the plots, if the page has no such one.
    """
    plots = {found["name"]: found[0] for found in PLOT.finditer(page)}
    if name not in plots:
        raise FormatError(f"plot {name}", "the page has no such one", f"use one of: {', '.join(plots)}")
    colours = "\n".join(COLOURS.findall(page))
    head, body = plots[name].split(">", 1)
    return f'{head} width="{WIDTH}" style="{FONT}"><style>{colours}</style>{body}\n'


def main(page: Path, name: str, output: Path) -> None:
    try:
        write_text(output, standalone(page.read_text(encoding="utf-8"), name))
    except (ReproquantError, OSError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
