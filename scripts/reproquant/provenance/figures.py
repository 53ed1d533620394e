"""The numbers of a report, each looked up again where it says it comes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any

from reproquant.provenance.lineage import FORMULAS, dereference

Wrong = tuple[str, str, str]
"""What is wrong, the expected value, the found one."""


def wrong_numbers(
    results: Path, report: str, sound: Callable[[str], bool], sources: Set[str] | None
) -> Iterator[Wrong]:
    """The numbers of a report.json that can't be found again as they stand there.

    ``sources`` are the files that it may name, None if nobody knows. Those that aren't ``sound`` are left
    out: it is known that they were changed.
    """
    try:
        data = json.loads((results / report).read_bytes())
        numbers = {entry["id"]: entry for entry in data["numbers"]}
        files = dict(data["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    for path in sorted(files.keys() - sources) if sources is not None else ():
        yield f"it names {path}, and neither that nor its stage was an input of it", "a source", path
    loaded = {path: _load(results / path) for path in files if path == "study.json" or sound(path)}
    for path, (_, sha256) in loaded.items():
        if sha256 != files[path]:
            yield f"it was made from other bytes of {path}", sha256, files[path]
    for entry in numbers.values():
        yield from _check(entry, numbers, loaded, files)


def _check(
    entry: dict[str, Any],
    numbers: dict[str, dict[str, Any]],
    sources: dict[str, tuple[Any, str]],
    files: dict[str, str],
) -> Iterator[Wrong]:
    where = f"number '{entry['id']}'"
    try:
        if "derived" in entry:
            inputs = [numbers[id]["value"] for id in entry["derived"]["inputs"]]
            expected = FORMULAS[entry["derived"]["formula"]](inputs)
        else:
            source = entry["source"]
            if source["sha256"] != files[source["path"]]:
                yield f"{where} names another {source['path']}", files[source["path"]], source["sha256"]
                return
            if source["path"] not in sources or sources[source["path"]][1] != source["sha256"]:
                return
            expected = dereference(sources[source["path"]][0], source["pointer"])
    except (LookupError, TypeError, ZeroDivisionError):
        yield f"{where} has no source that can be followed", "a source", str(entry)
        return
    if expected != entry["value"]:
        yield f"{where} isn't what its source says", repr(expected), repr(entry["value"])


def _load(path: Path) -> tuple[Any, str]:
    try:
        content = path.read_bytes()
        return json.loads(content), hashlib.sha256(content).hexdigest()
    except (OSError, ValueError):
        return None, "no JSON"
