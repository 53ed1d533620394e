"""`reproquant compare`: what changed and what moved, as tables for people or JSON for programs."""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reproquant.report.causes import Cause
from reproquant.report.compare import Comparison, Figure, Row
from reproquant.report.compare import compare as compare_results
from reproquant.report.noise import LEVEL
from reproquant.report.show import three_digits

COLOURS = {
    "faster": "green",
    "smaller": "green",
    "better": "green",
    "slower": "red",
    "larger": "red",
    "worse": "red",
}
CODE = "code file "
WORDS = {
    "ttft_ms": "first token, ms",
    "prefill_tok_per_s": "prefill, tok/s",
    "decode_tok_per_s": "decode, tok/s",
    "output_tok_per_s": "output, tok/s",
    "start_s": "start, s",
    "artifact_bytes": "weights, MB",
    "kld": "divergence, nat",
    "same_top_percent": "same likeliest token, %",
}
PIPE_WIDTH = 160
SHOWN = 40


def compare(
    old: Annotated[Path, typer.Argument(help="a results directory, its report.json, or a measurement")],
    new: Annotated[Path, typer.Argument(help="the same kind, of the later run")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs instead of text")] = False,
) -> None:
    """Say what moved beyond the noise from OLD to NEW, and what changed that could have moved it."""
    found = compare_results(old, new)
    if as_json:
        print(json.dumps(found.as_data(), indent=1, ensure_ascii=False))
        return
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.print(_causes(found), _rows(found))
    for pair in found.pairs:
        if pair.obstacles:
            console.print(escape(f"{pair.name} is not comparable: {'; '.join(pair.obstacles)}"))
        for side, status, doubts in zip(("old", "new"), pair.status, pair.doubts, strict=True):
            if doubts:
                console.print(escape(f"{pair.name}, {side}, is {status}: {' '.join(doubts)}"))
    for words, names in (("gone", found.gone), ("new", found.come)):
        if names:
            console.print(escape(f"{words}: {', '.join(names)}"))
    console.print(escape(sentence(found)))


def sentence(found: Comparison) -> str:
    """How many figures moved, and how many would by chance."""
    moved = sum(row.moved for row in found.rows)
    text = f"{moved} of {len(found.rows)} figures moved."
    if found.tested:
        text += f" {found.tested} were tested; chance alone moves each in at most {LEVEL:.0%} of comparisons."
    return text


def _causes(found: Comparison) -> Table:
    table = Table(
        "what changed", "old", "new", "reaches", title=f"{found.old} → {found.new}", title_justify="left"
    )
    code = [cause for cause in found.causes if cause.what.startswith(CODE)]
    for cause in found.causes:
        if cause not in code:
            table.add_row(
                *map(escape, (cause.what, _cut(cause.old), _cut(cause.new), ", ".join(cause.reaches)))
            )
    if code:
        names = ", ".join(cause.what.removeprefix(CODE) for cause in code)
        table.add_row(f"code files ({len(code)})", escape(names), "", escape(", ".join(_reached(code))))
    if not found.causes:
        table.add_row("nothing that is on record", "", "", "")
    return table


def _reached(causes: list[Cause]) -> list[str]:
    return sorted({name for cause in causes for name in cause.reaches})


def _rows(found: Comparison) -> Table:
    """Every figure; where all of a subject are the same, one row says so."""
    table = Table("subject", "figure", "at once", "old", "new", "new / old", "verdict", "because")
    explained = {pair.name for pair in found.pairs if pair.obstacles}
    for name, members in groupby(found.rows, lambda row: row.of):
        rows = list(members)
        if all(row.verdict == "the same" for row in rows):
            table.add_row(escape(name), f"all {len(rows)}", "", "", "", "", "[dim]the same[/]", "")
            continue
        for place, row in enumerate(rows):
            reason = "" if row.verdict == "not comparable" and name in explained else row.why
            style = COLOURS.get(row.verdict, "dim")
            table.add_row(
                escape(name if place == 0 else ""),
                WORDS.get(row.metric, row.metric),
                str(row.concurrency or ""),
                escape(_figure(row.old, row)),
                escape(_figure(row.new, row)),
                escape(_ratio(row)),
                f"[{style}]{row.verdict}[/]",
                escape(reason),
            )
    return table


def _figure(figure: Figure, row: Row) -> str:
    scale = 1e6 if row.unit == "B" else 1
    text = three_digits(figure.median / scale)
    if len(figure.values) > 1:
        text += f" [{three_digits(figure.min / scale)}–{three_digits(figure.max / scale)}]"
    return text


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return ""
    pairs = "" if row.low is None or row.high is None else f" [{row.low:.3f}–{row.high:.3f}]"
    return f"{row.ratio:.3f}{pairs}"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
