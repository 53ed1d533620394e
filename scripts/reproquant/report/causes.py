"""What changed between two results, out of their records: the causes beside the effects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reproquant.bench.measurement import Measurement
from reproquant.provenance.staleness import Change, changes, differences
from reproquant.report.side import Side

FLEETING = ("load_average", "busy_share_before", "client_cores", "index")
"""What a machine tells of the moment."""


@dataclass(frozen=True)
class Cause:
    """Something that isn't what it was; ``reaches`` names the subjects and evaluations made with it."""

    what: str
    old: str
    new: str
    reaches: tuple[str, ...]


def causes(old: Side, new: Side) -> tuple[Cause, ...]:
    """Every difference upstream of a subject or an evaluation that both sides have, in the order found."""
    found: dict[Change, list[str]] = {}
    for name in old.measurements.keys() & new.measurements.keys():
        before, after = old.measurements[name], new.measurements[name]
        upstream = _records(old, new, f"bench/{name}.json")
        for change in (*upstream, *_engine(before, after), *_machine(before, after)):
            found.setdefault(change, []).append(name)
    for artifact in old.qualities.keys() & new.qualities.keys():
        for change in _records(old, new, f"quality/{artifact}.json"):
            found.setdefault(change, []).append(f"quality of {artifact}")
    return tuple(Cause(*change, tuple(sorted(set(names)))) for change, names in sorted(found.items()))


def _records(old: Side, new: Side, name: str) -> Iterator[Change]:
    """Differences of the recipes, and of what stages ran on, for all that ``name`` was made from."""
    before, after = old.upstream(name), new.upstream(name)
    for one in before.keys() & after.keys():
        then, now = (side[one]["predicate"]["buildDefinition"] for side in (before, after))
        yield from changes(then["externalParameters"], now["externalParameters"])
        yield from _prefixed("", _runner(then), _runner(now))
    if before and after:
        yield from _one_of(before.keys() - after.keys(), after.keys() - before.keys())


def _one_of(gone: set[str], come: set[str]) -> Iterator[Change]:
    """An input that was replaced by another: an environment with another name, other weights."""
    if gone or come:
        yield (
            "made from",
            ", ".join(sorted(gone)) or "nothing else",
            ", ".join(sorted(come)) or "nothing else",
        )


def _runner(definition: dict[str, Any]) -> dict[str, Any]:
    here = definition["internalParameters"]
    return {"Python": here["python"], "checkout's commit": here["git"]["commit"]}


def _engine(before: Measurement, after: Measurement) -> Iterator[Change]:
    yield from _prefixed("engine ", before.engine_facts, after.engine_facts)
    yield from _prefixed("variable ", before.environment_variables, after.environment_variables)
    gone = [word for word in before.command if word not in after.command]
    come = [word for word in after.command if word not in before.command]
    if gone or come:
        yield "server's command", " ".join(gone) or "nothing else", " ".join(come) or "nothing else"


def _machine(before: Measurement, after: Measurement) -> Iterator[Change]:
    yield from _prefixed("machine ", _lasting(before.machine), _lasting(after.machine))


def _lasting(machine: Any) -> Any:
    """A machine's description without what changes from minute to minute; GPUs by their place."""
    if isinstance(machine, dict):
        return {key: _lasting(value) for key, value in machine.items() if key not in FLEETING}
    if isinstance(machine, list) and machine and isinstance(machine[0], dict):
        return {str(index): _lasting(value) for index, value in enumerate(machine)}
    return machine


def _prefixed(prefix: str, then: Any, now: Any) -> Iterator[Change]:
    for place, old, new in differences(then, now):
        yield f"{prefix}{place}", old, new
