"""What the page's script puts a number's lineage together from: each file, request and long value once.

The script joins the pieces as ``explain`` does, so that a click on a number
shows what ``reproquant explain`` prints for it. Values are texts, as people are
shown them, since a browser would write some figures with other digits than the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproquant.report.explain import making, shown
from reproquant.report.numbers import Numbers, Source
from reproquant.report.rounds import behind, levels


def pieces(numbers: Numbers, results: Path) -> dict[str, Any]:
    """The pieces for all numbers of a report, as JSON data.

    ``files``: of each file that a number comes from, or that such a file was
    made from, the ``facts`` (a name and a place in ``values``) and the files
    that it was made ``from``. ``measured``: see `measured`. Files that the
    report itself writes have no record yet and are left out.
    """
    values: dict[str, int] = {}
    sources = [number.origin for number in numbers if isinstance(number.origin, Source)]
    levels_of = {one.path for one in sources if one.pointer.startswith("/levels/")}
    benches = sorted(path for path in levels_of if path.startswith("bench/"))
    return {
        "files": _files(numbers, results, values),
        "values": list(values),
        "measured": {path: measured(numbers.read(path)) for path in benches},
    }


def _files(numbers: Numbers, results: Path, values: dict[str, int]) -> dict[str, Any]:
    """``files``; the texts in them are added to ``values``."""
    files: dict[str, Any] = {}
    waiting = [path for path in numbers.files() if not numbers.makes(path)]
    while waiting:
        name = waiting.pop(0)
        if name not in files:
            made = making(results, name)
            texts = {fact: text for fact, value in made.facts.items() if (text := shown(value))}
            places = {fact: values.setdefault(text, len(values)) for fact, text in texts.items()}
            files[name] = {"facts": places, "from": list(made.inputs)}
            waiting += made.inputs
    return files


def measured(measurement: dict[str, Any]) -> dict[str, Any]:
    """A measurement's rounds and the requests in them.

    ``levels``: of each concurrency its ``rounds`` (title and places of the
    requests) and its ``metrics`` with the value of each round and, for each
    figure of a metric, the places of the rounds ``behind`` it. ``places``: those
    of all these requests, in order; ``columns``: see `_column`.
    """
    found = levels(measurement)
    places = sorted({place for level in found for round in level.rounds for place in round.requests})
    requests = [measurement["requests"][place] for place in places]
    keys = dict.fromkeys(key for request in requests for key in request)
    return {
        "levels": [
            {
                "rounds": [[round.title, list(round.requests)] for round in level.rounds],
                "metrics": {
                    metric: {
                        "values": list(map(shown, values)),
                        "behind": {
                            figure: behind(values, figure)
                            for figure in measurement["levels"][place][metric]
                            if figure != "rounds"
                        },
                    }
                    for metric, values in level.values.items()
                },
            }
            for place, level in enumerate(found)
        ],
        "places": places,
        "columns": [[key, _column([request.get(key) for request in requests])] for key in keys],
    }


def _column(values: Sequence[Any]) -> Any:
    """One key of all requests: a list of texts, or the text alone if it is the same for all.

    Where objects stand, a column for each of their keys, with JSON for texts. An
    empty text isn't shown. Integers stay what they are: a browser writes them alike.
    """
    if any(isinstance(value, dict) for value in values):
        keys = dict.fromkeys(key for value in values for key in value or {})
        return {key: _alike([json.dumps(value[key]) if value else "" for value in values]) for key in keys}
    return _alike([value if type(value) is int else shown(value) for value in values])


def _alike(cells: Sequence[int | str]) -> Sequence[int | str] | int | str:
    return cells if len(set(cells)) > 1 else cells[0]
