"""Random damage to a finished study: the audit finds every one and names the damaged file, no other."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from checkout import Checkout
from reproquant.files import read_json, sha256_file, store, write_json
from reproquant.provenance import installed
from reproquant.provenance.audit import audit
from reproquant.provenance.digests import Digests
from reproquant.provenance.evidence import Evidence
from reproquant.study import Study

SEED = 20_260_101
DAMAGES = 208
ENVIRONMENT_DAMAGES = 8


@dataclass
class Victim:
    """A copy of the finished study, and dice."""

    results: Path
    dice: random.Random

    def __post_init__(self) -> None:
        evidence = Evidence.gather(self.results, Study.load(self.results / "study.json"), Digests())
        self.outputs = sorted({name for one in evidence.artifacts for name in one.outputs.values()})
        self.records = sorted(evidence.records)
        self.listed = sorted(
            evidence.name(path) for listing in evidence.listings.values() for path in listing.digests
        )

    def pick(self, names: list[str]) -> str:
        return self.dice.choice(names)


@pytest.fixture(scope="module")
def victim(tiny: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Victim:
    results = tmp_path_factory.mktemp("victim") / "results" / "tiny"
    shutil.copytree(tiny.results, results)
    return Victim(results, random.Random(SEED))


def found(results: Path) -> set[str]:
    """The files that a full audit of the results names; it reads every byte each time."""
    return {finding.file for finding in audit(results, Digests(), environments=False)}


def flip(path: Path, dice: random.Random) -> None:
    """One bit, anywhere; size and modification time stay."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(place := dice.randrange(before.st_size))
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << dice.randrange(8)]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def edit_a_leaf(path: Path, dice: random.Random, wanted: Callable[[Any], bool]) -> None:
    """Change one value of a JSON file and write it as the workflow writes."""
    data = read_json(path)
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)):
            if isinstance(value[key], dict | list):
                walk(value[key])
            elif wanted(value[key]):
                places.append((value, key))

    walk(data)
    holder, key = dice.choice(places)
    holder[key] = other(holder[key])
    write_json(path, data)


def other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value[:-1] + ("0" if value[-1:] != "0" else "1")
        case _:
            return "something"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def an_artifacts_bit(victim: Victim) -> set[str]:
    flip(victim.results / (name := victim.pick(victim.outputs)), victim.dice)
    return {name}


def a_listed_files_bit(victim: Victim) -> set[str]:
    flip(victim.results / (name := victim.pick(victim.listed)), victim.dice)
    return {name}


def a_records_bit(victim: Victim) -> set[str]:
    flip(victim.results / (name := victim.pick(victim.records)), victim.dice)
    return {name}


def the_roots_or_studys_bit(victim: Victim) -> set[str]:
    flip(victim.results / (name := victim.pick(["root.json", "study.json"])), victim.dice)
    return {name}


def a_value_of_a_record(victim: Victim) -> set[str]:
    edit_a_leaf(victim.results / (name := victim.pick(victim.records)), victim.dice, lambda value: True)
    return {name}


def a_number_of_a_measurement(victim: Victim) -> set[str]:
    name = victim.pick([name for name in victim.outputs if name.startswith("bench/")])
    edit_a_leaf(victim.results / name, victim.dice, is_number)
    return {name}


def a_number_of_the_report(victim: Victim) -> set[str]:
    edit_a_leaf(victim.results / "report/report.json", victim.dice, is_number)
    return {"report/report.json"}


def a_digit_of_a_page(victim: Victim) -> set[str]:
    path = victim.results / (name := victim.pick(["report/index.html", "report/report.md"]))
    text = path.read_text()
    place = victim.dice.choice([place for place, letter in enumerate(text) if letter.isdigit()])
    path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
    return {name}


def two_swapped_records(victim: Victim) -> set[str]:
    names = victim.dice.sample(victim.records, 2)
    contents = [(victim.results / name).read_bytes() for name in names]
    for name, content in zip(names, reversed(contents), strict=True):
        (victim.results / name).write_bytes(content)
    return set(names)


def a_deleted_file(victim: Victim) -> set[str]:
    names = [*victim.outputs, *victim.records, *victim.listed, "root.json"]
    (victim.results / (name := victim.pick(names))).unlink()
    return {name}


def an_older_record(victim: Victim) -> set[str]:
    """The record of an earlier run that gave the same bytes."""
    path = victim.results / (name := victim.pick(victim.records))
    record = read_json(path)
    record["predicate"]["runDetails"]["metadata"]["startedOn"] = "2025-01-01T00:00:00.000+00:00"
    write_json(path, record)
    return {name}


def an_older_artifact_with_its_record(victim: Victim) -> set[str]:
    """An artifact of an earlier run and the record that fits it: sound in themselves."""
    name = victim.pick([name for name in victim.outputs if f"{name}.prov.json" in victim.records])
    artifact, record = victim.results / name, victim.results / f"{name}.prov.json"
    artifact.write_bytes(artifact.read_bytes() + b"\n")
    data = read_json(record)
    for subject in data["subject"]:
        if subject["name"] == name:
            subject["digest"]["sha256"] = sha256_file(artifact)
    write_json(record, data)
    return {name, f"{name}.prov.json"}


def a_planted_file(victim: Victim) -> set[str]:
    folder = (victim.results / victim.pick(victim.listed)).parent
    (folder / "planted.safetensors").write_bytes(b"planted")
    return {str((folder / "planted.safetensors").relative_to(victim.results))}


KINDS = (
    an_artifacts_bit, a_listed_files_bit, a_records_bit, the_roots_or_studys_bit, a_value_of_a_record,
    a_number_of_a_measurement, a_number_of_the_report, a_digit_of_a_page, two_swapped_records, a_deleted_file,
    an_older_record, an_older_artifact_with_its_record, a_planted_file,
)  # fmt: skip


@contextmanager
def put_back(results: Path, backup: Path) -> Iterator[None]:
    """Undo whatever the body did to the files, times included."""
    before = {path: path.stat().st_ctime_ns for path in results.rglob("*") if path.is_file()}
    yield
    for path in results.rglob("*"):
        if path.is_file() and path not in before:
            path.unlink()
    for path, changed in before.items():
        if not path.is_file() or path.stat().st_ctime_ns != changed:
            shutil.copy2(backup / path.relative_to(results), path)


def test_the_untouched_study_has_no_finding(victim: Victim) -> None:
    assert found(victim.results) == set()


def test_every_one_of_200_damages_is_found_and_no_sound_file_is_named(victim: Victim, tiny: Checkout) -> None:
    missed = []
    for number in range(DAMAGES):
        damage = KINDS[number % len(KINDS)]
        with put_back(victim.results, tiny.results):
            damaged = damage(victim)
            named = found(victim.results)
        if not named or not named <= damaged or (len(damaged) == 1 and named != damaged):
            missed.append((damage.__name__, sorted(damaged), sorted(named)))
    assert missed == []
    assert found(victim.results) == set()


@pytest.fixture
def linked_store(
    tiny: Checkout, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The environments of the study in a store of the test's own, their files hard links."""
    own = tmp_path_factory.mktemp("store")
    for facts in map(read_json, tiny.results.glob("environments/*.json")):
        if "lock_sha256" in facts:
            root = installed.folder(facts)
            shutil.copytree(root, own / root.relative_to(store()), symlinks=True, copy_function=link_or_copy)
    monkeypatch.setenv("REPROQUANT_STORE", str(own))
    return own


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def test_every_damage_to_an_environment_is_found(victim: Victim, linked_store: Path) -> None:
    first = Digests()
    assert audit(victim.results, first) == []
    trusted = {str(path): (stamp, first.sha256(path)) for path, stamp in first.stamps.items()}
    for number in range(ENVIRONMENT_DAMAGES):
        root = victim.dice.choice(sorted((linked_store / "environments").iterdir()))
        environment = installed.read(root)
        assert environment is not None
        path = victim.dice.choice(sorted(environment.digests))
        content = path.read_bytes()
        path.unlink()
        if number % 4 == 3:
            damaged = path
        elif number % 4 == 2:
            damaged = path.with_name("planted.py")
            path.write_bytes(content)
            damaged.write_text("import os\n")
        else:
            damaged = path
            path.write_bytes(content + b"\n")
        # The cache goes by the change time too, which nobody can set: what was written is read again.
        named = {finding.file for finding in audit(victim.results, Digests(dict(trusted)))}
        assert named == {str(damaged)}
        damaged.unlink(missing_ok=True)
        path.write_bytes(content)
