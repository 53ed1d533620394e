"""`reproquant`: what a person asks of a study outside of a run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from reproquant.doctor.command import doctor
from reproquant.errors import FormatError, ReproquantError, of_system
from reproquant.files import read_json, sha256_text, store, write_json
from reproquant.fp8 import layouts
from reproquant.provenance import rederive as rederived
from reproquant.provenance.audit import audit as audit_study
from reproquant.provenance.crate import export
from reproquant.provenance.digests import Digests
from reproquant.provenance.findings import Finding, Kind, exit_code
from reproquant.provenance.published import made_since, publication
from reproquant.provenance.published import publish as publish_study
from reproquant.provenance.remeasure import forget
from reproquant.provenance.sign import sign as sign_root
from reproquant.provenance.sign import unsigned
from reproquant.provenance.times import PAUSE_S
from reproquant.provenance.times import times as study_times
from reproquant.report.compare_command import compare
from reproquant.report.explain import Node, shown
from reproquant.report.explain import explain as explain_number
from reproquant.study import Study

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
Results = Annotated[Path, typer.Option(help="a study's results directory")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs instead of text")]


@app.callback()
def main() -> None:
    """Ask about a study's results."""


@app.command()
def audit(
    target: Annotated[Path, typer.Argument(help="a study's results directory")] = Path("results/embedded"),
    as_json: AsJson = False,
    quick: Annotated[
        bool, typer.Option(help="don't read files whose size and times are those of the last audit")
    ] = False,
    environments: Annotated[bool, typer.Option(help="check the environments in this machine's store")] = True,
    signatures: Annotated[
        Path | None, typer.Option(help="a file of allowed signers: the root must be signed by one of them")
    ] = None,
) -> None:
    """Compare results with their records: exit 0 sound, 3 tampered, 4 broken chain, 5 stale, 6 missing."""
    with _known_failures():
        if not target.is_dir():
            raise FormatError(
                target, "there is no such results directory", "name one, such as results/embedded"
            )
        started = time.monotonic()
        remembered = _remembered(target)
        digests = Digests(Digests.remembered(remembered) if quick else None)
        with _progress() as advance:
            findings = audit_study(target, digests, advance, environments)
        if signatures:
            findings += unsigned(target, signatures)
        write_json(_memory(target), remembered | digests.memory())
        summary = _summary(target, environments, findings, digests, time.monotonic() - started)
        if as_json:
            _print_json({**summary, "findings": [finding.as_data() for finding in findings]})
        else:
            print(*findings, _sentence(summary), sep="\n")
        raise typer.Exit(exit_code(findings))


@app.command()
def sign(
    key: Annotated[Path, typer.Argument(help="an SSH key")], results: Results = Path("results/embedded")
) -> None:
    """Sign a study's root; `audit --signatures FILE` checks it."""
    with _known_failures():
        print(sign_root(results, key))


@app.command()
def explain(
    number: Annotated[str, typer.Argument(help="the id of a number in report.json")],
    results: Results = Path("results/embedded"),
    as_json: AsJson = False,
) -> None:
    """Show what a number of the report was made from, down to requests and the model's revision."""
    with _known_failures():
        node = explain_number(results, number)
        if as_json:
            _print_json(node.as_data())
        else:
            Console().print(_tree(node, Tree(Text(node.title, style="bold"))))


@app.command()
def relayout(
    checkpoint: Annotated[Path, typer.Argument(help="an FP8 checkpoint, in either layout")],
    target: Annotated[Path, typer.Argument(help="a folder that doesn't exist")],
    to: Annotated[str, typer.Option(help="fp8 (AutoFP8's) or compressed-tensors (llm-compressor's)")],
) -> None:
    """Write an FP8 checkpoint in the other layout; codes and scales stay what they are."""
    with _known_failures():
        if to not in layouts.CONFIGS:
            raise FormatError(to, "there is no such layout", f"use one of {', '.join(layouts.CONFIGS)}")
        layouts.rewrite(checkpoint, target, to)


@app.command()
def verify(
    rederive: Annotated[str | None, typer.Option(help="the stage to run again; without it: a table")] = None,
    which: Annotated[
        str | None, typer.Option(help="type, subject or environment, if there are several")
    ] = None,
    results: Results = Path("results/embedded"),
    threads: Annotated[int, typer.Option(help="for stages that take a number")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make an artifact again from its inputs and compare bytes: exit 0 the same, 3 different."""
    with _known_failures():
        if rederive is None:
            rules = {stage: rule.model_dump() for stage, rule in rederived.rules().items()}
            _print_json(rules) if as_json else Console().print(_reproducible(rules))
            return
        artifact = rederived.chosen(Study.load(results / "study.json"), rederive, which)
        log = store() / "logs" / "rederive" / f"{results.name}-{artifact.main.replace('/', '-')}.log"
        compared = rederived.rederive(results, artifact, threads or os.cpu_count() or 1, log)
        if as_json:
            _print_json([{**asdict(one), "same": one.same} for one in compared])
        else:
            print(*compared, sep="\n")
        raise typer.Exit(0 if all(one.same for one in compared) else 3)


@app.command()
def remeasure(
    subjects: Annotated[list[str], typer.Argument(help="the subjects to measure again")],
    results: Results = Path("results/embedded"),
) -> None:
    """Forget measurements, so that the next run measures these subjects again."""
    with _known_failures():
        for subject in subjects:
            forget(results, subject)
            print(f"{subject}: forgotten; the next run of the study measures it again")


@app.command("times")
def show_times(results: Results = Path("results/embedded"), as_json: AsJson = False) -> None:
    """Show where a study's time went, and how much of it the workflow itself took."""
    with _known_failures():
        found = study_times(results)
        if as_json:
            stages = [
                {"artifact": one.artifact, "seconds": one.seconds, "of_programs": one.of_programs}
                for one in found.stages
            ]
            whole = {"whole_s": found.whole, "of_programs_s": found.of_programs, "overhead": found.overhead}
            _print_json({**whole, "stages": stages, "answered": list(found.answered)})
            return
        table = Table("artifact", "starts at", "seconds", "of them programs'")
        first = min(one.span[0] for one in found.stages)
        for one in found.stages:
            cells = (one.span[0] - first, one.seconds, one.of_programs)
            table.add_row(one.artifact, *(f"{cell:.1f}" for cell in cells))
        Console().print(table)
        print(
            f"{found.whole:.1f} s from the first stage's start to the last one's end, pauses of more than "
            f"{PAUSE_S} s between two runs left out; a program ran in "
            f"{found.of_programs:.1f} s of them; the rest, {found.overhead:.1%} on top, is the workflow's own"
        )
        if found.answered:
            print(f"{len(found.answered)} were answered from the store and aren't counted")


@app.command()
def publish(
    target: Annotated[
        Path, typer.Argument(help="a folder that doesn't exist yet, such as published/h200-2026-12-01")
    ],
    results: Results = Path("results/embedded"),
) -> None:
    """Copy a finished study without what is large, to be kept; `audit` knows such a folder."""
    with _known_failures():
        found = publish_study(results, target)
        print(f"{target}: {len(found.withheld)} files of {found.bytes / 1e9:.1f} GB are there by digest only")


@app.command()
def export_crate(
    target: Annotated[Path, typer.Argument(help="a folder that doesn't exist yet")],
    results: Results = Path("results/embedded"),
    with_weights: Annotated[bool, typer.Option(help="put weights and binaries into the crate, too")] = False,
) -> None:
    """Write a study as a Provenance Run Crate (RO-Crate 1.1)."""
    with _known_failures():
        export(results, target, with_weights)
        print(target)


@contextmanager
def _known_failures() -> Iterator[None]:
    try:
        yield
    except (ReproquantError, OSError) as error:
        print(of_system(error, "reproquant") if isinstance(error, OSError) else error, file=sys.stderr)
        raise typer.Exit(2) from None


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar on standard error, if that is a terminal; it gives the function that moves it."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("reading", total=None)
        yield lambda done, total: progress.update(bar, advance=done, total=total)


def _memory(target: Path) -> Path:
    """Where the digests of the last audit are kept: they hold private paths, so not among the results."""
    return store() / "audits" / f"{sha256_text(str(target.resolve()))[:12]}.json"


def _remembered(target: Path) -> dict[str, Any]:
    path = _memory(target)
    return dict(read_json(path)) if path.is_file() else {}


def _summary(
    target: Path, environments: bool, findings: list[Finding], digests: Digests, seconds: float
) -> dict[str, Any]:
    published = publication(target)
    return {
        "results": str(target),
        "environments_checked": environments and published is None,
        "compared_with_checkout": published is None,
        "files_withheld": len(published.withheld) if published else 0,
        "bytes_withheld": published.bytes if published else 0,
        "made_since": made_since(target) if published and not findings else [],
        "files": digests.count,
        "files_not_read": len(digests.unread),
        "bytes_read": digests.bytes_read,
        "seconds": round(seconds, 2),
        "counts": {kind.value: sum(finding.kind == kind for finding in findings) for kind in Kind},
        "exit_code": exit_code(findings),
    }


def _sentence(summary: dict[str, Any]) -> str:
    counted = [f"{count} {kind}" for kind, count in summary["counts"].items() if count]
    parts = [f"{summary['files']} files, {summary['bytes_read'] / 1e9:.2f} GB read in {summary['seconds']} s"]
    if summary["files_not_read"]:
        parts.append(f"--quick: {summary['files_not_read']} were not read, size and times are as they were")
    if not summary["environments_checked"]:
        parts.append("environments were not checked")
    if not summary["compared_with_checkout"]:
        withheld = f"{summary['files_withheld']} files of {summary['bytes_withheld'] / 1e9:.1f} GB"
        parts.append(f"published: {withheld} are there by digest only, and today's checkout wasn't compared")
    if summary["made_since"]:
        parts.append(f"today's workflow would also make {', '.join(summary['made_since'])}")
    return f"{summary['results']}: {', '.join(counted) or 'sound'} ({'; '.join(parts)})"


def _tree(node: Node, tree: Tree) -> Tree:
    """A node and what it comes from for the terminal, a fact a line; empty ones are left out."""
    for name, value in node.facts.items():
        if text := shown(value):
            tree.add(Text.assemble((f"{name}: ", "dim"), text))
    for cause in node.causes:
        _tree(cause, tree.add(Text(cause.title, style="bold")))
    return tree


def _reproducible(rules: dict[str, dict[str, Any]]) -> Table:
    table = Table("stage", "same bytes again", "why")
    for stage, rule in rules.items():
        table.add_row(stage, "yes" if rule["reproducible"] else "no", rule["reason"])
    return table


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False))


app.command()(_known_failures()(doctor))
app.command()(_known_failures()(compare))
