"""From a number of a report to what made it, as a tree.

A number leads to its formula or to a place in a file. In a measurement that place
leads to the round and the requests behind it. Every file leads to its record, and
the record to the files that it was made from, down to the model's revision.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reproquant.errors import FormatError
from reproquant.files import read_json
from reproquant.provenance.lineage import pointer
from reproquant.provenance.record import record_of
from reproquant.report.rounds import behind, levels

REPORT = "report/report.json"
MEASURED = ("command", "environment_variables", "engine_facts", "machine", "workload")
RUN_AGAIN = "run snakemake again for this study: it makes what is missing or not as recorded"


@dataclass
class Node:
    """A step: what it is, what is known of it, and what it comes from."""

    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    causes: list[Node] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        return {"title": self.title, **self.facts, "from": [cause.as_data() for cause in self.causes]}


def explain(results: Path, id: str) -> Node:
    """The tree of the number ``id`` of a results directory's report.

    Raises FormatError if there is no report, no such number (near ids are
    named), or a file on the way is missing.
    """
    try:
        numbers = {entry["id"]: entry for entry in _json(results, REPORT)["numbers"]}
    except (KeyError, TypeError) as error:
        raise FormatError(results / REPORT, f"it is no report ({error!r})", RUN_AGAIN) from None
    if id not in numbers:
        near = difflib.get_close_matches(id, numbers, n=5, cutoff=0.4) or list(numbers)[:5]
        raise FormatError(
            f"number {id}", "the report has no number of this id", f"use an id such as {', '.join(near)}"
        )
    return _Explainer(results, numbers).number(id)


@dataclass(frozen=True)
class Making:
    """How a file was made: what its record and the file itself say, and the files that it was made from."""

    facts: dict[str, Any]
    inputs: tuple[str, ...] = ()


def making(results: Path, name: str) -> Making:
    """What made one file of a results directory; a file without a record says just that.

    Raises FormatError if its record, or one beside it that may name it, is none.
    """
    try:
        record = record_of(results / name, results)
        return Making({"record": None}) if record is None else _made(results, name, read_json(record))
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            results / name, f"it has no record that can be read ({error!r})", RUN_AGAIN
        ) from None


def _made(results: Path, name: str, record: dict[str, Any]) -> Making:
    definition, run, sha256 = _parts(record, name)
    recipe, here = definition["externalParameters"], definition["internalParameters"]
    return Making(
        {
            "stage": recipe["stage"],
            "started": run["metadata"]["startedOn"],
            "finished": run["metadata"]["finishedOn"],
            "sha256": sha256,
            "checkout": here["git"],
            "python": here["python"],
            "platform": here["platform"],
            "store of results": here.get("stored"),
            "study": recipe["study"],
            "locks": recipe["locks"],
            "packages": recipe["packages"],
            "data files": recipe["files"],
            **_special(results, name, recipe["stage"]),
        },
        tuple(item["name"] for item in definition["resolvedDependencies"]),
    )


def shown(value: Any) -> str:
    """A fact's value as people are shown it; empty for one that says nothing and is left out."""
    if value in (None, {}, []):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _Explainer:
    """The walk; a file that was explained once is only named when it is met again."""

    def __init__(self, results: Path, numbers: dict[str, dict[str, Any]]) -> None:
        self._results = results
        self._numbers = numbers
        self._explained: set[str] = set()

    def number(self, id: str) -> Node:
        entry = self._numbers[id]
        node = Node(f"{id} = {entry['value']} {entry['unit']}".rstrip())
        if "derived" in entry:
            node.facts["formula"] = entry["derived"]["formula"]
            node.causes = [self.number(other) for other in entry["derived"]["inputs"]]
        else:
            source = entry["source"]
            node.facts |= {"file": source["path"], "pointer": source["pointer"], "sha256": source["sha256"]}
            node.causes = [*self.requests(source), self.file(source["path"])]
        return node

    def file(self, name: str) -> Node:
        """A file, its record, and the files that it was made from."""
        if name in self._explained:
            return Node(f"{name} (see above)")
        self._explained.add(name)
        made = making(self._results, name)
        return Node(name, made.facts, [self.file(other) for other in made.inputs])

    def requests(self, source: dict[str, str]) -> list[Node]:
        """What a figure of a measurement was computed from: its rounds and their requests."""
        parts = source["pointer"].split("/")
        if not source["path"].startswith("bench/") or parts[1:2] != ["levels"] or len(parts) < 5:
            return []
        data = _json(self._results, source["path"])
        level, metric = levels(data)[int(parts[2])], parts[3]
        if metric not in level.values:
            return []
        values = level.values[metric]
        chosen = [int(parts[5])] if parts[4] == "rounds" else behind(values, parts[4])
        return [
            Node(
                f"{metric} = {values[place]} in {level.rounds[place].title}",
                {"pointer": pointer("levels", int(parts[2]), metric, "rounds", place)},
                [_request(data["requests"], index) for index in level.rounds[place].requests],
            )
            for place in chosen
        ]


def _special(results: Path, name: str, stage: str) -> dict[str, Any]:
    """What a stage's own file says that a reader wants to know."""
    keys = {
        "benchmark": MEASURED,
        "benchmark_again": MEASURED,
        "build_llama_cpp": ("version", "commit", "compilers", "definitions", "binaries"),
        "fetch_llama_cpp": ("kind", "repository", "package", "version", "commit", "tree_sha256"),
        "fetch_model": ("source",),
        "fetch_checkpoint": ("source",),
        "build_environment": (
            *("python", "lock_sha256", "installed_sha256", "frozen_sha256", "torch"),
            *("image", "tool", "tool_version"),
        ),
    }.get(stage, ())
    data = _json(results, name) if keys else {}
    return {key.replace("_", " "): data[key] for key in keys if key in data}


def _request(requests: list[dict[str, Any]], place: int) -> Node:
    return Node(f"request {place}", {"pointer": pointer("requests", place), **requests[place]})


def _parts(record: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    predicate = record["predicate"]
    subjects = {item["name"]: item["digest"]["sha256"] for item in record["subject"]}
    return predicate["buildDefinition"], predicate["runDetails"], subjects.get(name)


def _json(results: Path, name: str) -> Any:
    try:
        return read_json(results / name)
    except (OSError, ValueError) as error:
        raise FormatError(results / name, f"it can't be read: {error}", RUN_AGAIN) from error
