"""A number of the report can't exist without a place that it was read from."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from reproquant.errors import FormatError
from reproquant.files import write_json
from reproquant.provenance.lineage import dereference, pointer
from reproquant.report.facts import facts
from reproquant.report.numbers import Number, Numbers, Source
from reproquant.report.show import show


@pytest.fixture
def numbers(tmp_path: Path) -> Numbers:
    write_json(tmp_path / "a.json", {"x": 6, "y": 1.5, "zero": 0, "yes": True, "word": "w", "none": None})
    return Numbers(tmp_path)


def test_a_number_is_what_stands_at_its_pointer_with_the_digest_of_the_file(
    numbers: Numbers, tmp_path: Path
) -> None:
    number = numbers.take("a.json", "/y", "tok/s", "speed")
    digest = sha256((tmp_path / "a.json").read_bytes()).hexdigest()
    assert number.entry() == {
        "id": "speed",
        "value": 1.5,
        "unit": "tok/s",
        "source": {"path": "a.json", "sha256": digest, "pointer": "/y"},
    }


@pytest.mark.parametrize("at", ["/nothing", "/yes", "/word", "/none", "", "y", "/y/0"])
def test_a_place_without_a_number_is_refused(numbers: Numbers, at: str) -> None:
    with pytest.raises(FormatError, match=r"a\.json#"):
        numbers.take("a.json", at, "", "id")


@pytest.mark.parametrize("path", ["../a.json", "/etc/passwd", "sub/../../a.json"])
def test_a_source_outside_the_results_directory_is_refused(numbers: Numbers, path: str) -> None:
    with pytest.raises(FormatError, match="inside the results directory"):
        numbers.take(path, "/x", "", "id")


def test_a_missing_file_is_named(numbers: Numbers) -> None:
    with pytest.raises(FormatError, match=r"bench/none\.json"):
        numbers.take("bench/none.json", "/x", "", "id")


def test_not_a_number_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "nan.json").write_text('{"x": NaN}')
    with pytest.raises(FormatError, match="NaN is not a JSON number"):
        Numbers(tmp_path).take("nan.json", "/x", "", "id")


def test_one_id_names_one_number(numbers: Numbers) -> None:
    assert numbers.take("a.json", "/x", "", "id") is numbers.take("a.json", "/x", "", "id")
    with pytest.raises(FormatError, match="two different numbers"):
        numbers.take("a.json", "/y", "", "id")


def test_a_derived_number_names_its_formula_and_inputs(numbers: Numbers) -> None:
    inputs = [numbers.take("a.json", "/x", "", "x"), numbers.take("a.json", "/y", "", "y")]
    ratio = numbers.derive("a / b", inputs, "×", "ratio")
    assert ratio.entry() == {
        "id": "ratio",
        "value": 4.0,
        "unit": "×",
        "derived": {"formula": "a / b", "inputs": ["x", "y"]},
    }


def test_a_number_made_by_hand_can_not_be_an_input(numbers: Numbers) -> None:
    foreign = Number("x", 6, "", Source("a.json", "0" * 64, "/x"))
    with pytest.raises(FormatError, match="was not taken from these results"):
        numbers.derive("sum", [foreign], "", "total")


def test_a_division_by_zero_is_refused(numbers: Numbers) -> None:
    inputs = [numbers.take("a.json", "/x", "", "x"), numbers.take("a.json", "/zero", "", "zero")]
    with pytest.raises(FormatError, match="divides by zero"):
        numbers.derive("a / b", inputs, "", "ratio")


def test_a_result_that_is_infinite_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"large": 1e308, "small": 1e-10})
    numbers = Numbers(tmp_path)
    inputs = [numbers.take("a.json", f"/{key}", "", key) for key in ("large", "small")]
    with pytest.raises(FormatError, match="'a / b' of large, small is inf"):
        numbers.derive("a / b", inputs, "", "ratio")


def test_each_file_is_read_once_so_that_value_and_digest_belong_together(
    numbers: Numbers, tmp_path: Path
) -> None:
    before = numbers.take("a.json", "/x", "", "x")
    write_json(tmp_path / "a.json", {"x": 7})
    after = numbers.take("a.json", "/x", "", "x again")
    assert (after.value, after.origin) == (before.value, before.origin)


RFC_6901 = {
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
}


@pytest.mark.parametrize(
    ("at", "value"),
    [("", RFC_6901), ("/foo", ["bar", "baz"]), ("/foo/0", "bar"), ("/", 0), ("/a~1b", 1), ("/c%d", 2)]
    + [("/e^f", 3), ("/g|h", 4), ("/i\\j", 5), ('/k"l', 6), ("/ ", 7), ("/m~0n", 8)],
)
def test_pointers_lead_where_rfc_6901_says(at: str, value: object) -> None:
    assert dereference(RFC_6901, at) == value


@pytest.mark.parametrize("at", ["foo", "/foo/2", "/foo/-", "/foo/00", "/foo/-1", "/foo/x"])
def test_a_pointer_to_nowhere_is_an_error(at: str) -> None:
    with pytest.raises(LookupError):
        dereference(RFC_6901, at)


def test_a_pointer_is_escaped_when_it_is_made() -> None:
    assert pointer("a/b", 0, "m~n") == "/a~1b/0/m~0n"


@pytest.mark.parametrize(
    ("key", "label", "unit"),
    [
        ("bandwidth_gb_per_s", "bandwidth", "GB/s"),
        ("start_timeout_s", "start timeout", "s"),
        ("start_skew_ms", "start skew", "ms"),
        ("peak_rss_bytes", "peak rss", "B"),
        ("drift_percent", "drift", "%"),
        ("sm_mhz", "sm", "MHz"),
        ("hot_c", "hot", "°C"),
        ("OMP_NUM_THREADS", "OMP_NUM_THREADS", ""),
        ("rounds", "rounds", ""),
    ],
)
def test_the_unit_of_a_fact_is_the_one_that_its_key_ends_with(
    key: str, label: str, unit: str, tmp_path: Path
) -> None:
    write_json(tmp_path / "a.json", {key: 5})
    [(words, number)] = facts(Numbers(tmp_path), "a.json")
    assert isinstance(number, Number) and (words, number.unit) == (label, unit)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (45.234, "tok/s", "45.2 tok/s"),
        (0.0471, "s", "0.0471 s"),
        (198.4, "tok/s", "198 tok/s"),
        (23748.2, "tok/s", "23\u202f748 tok/s"),
        (124_000_000, "B", "124 MB"),
        (4_683_075_072, "B", "4.68 GB"),
        (700, "B", "700 B"),
        (4, "", "4"),
        (11434, "", "11434"),
        (11434, "tokens", "11\u202f434 tokens"),
        (0.0, "ms", "0 ms"),
        (0.000193, "", "0.000193"),
        (3.21e-8, "nat", "3.21e-08 nat"),
        (-3.21e-5, "%", "-3.21e-05 %"),
    ],
)
def test_a_number_is_written_with_three_digits_and_a_unit_that_fits(
    value: float, unit: str, text: str
) -> None:
    assert show(Number("id", value, unit, Source("a.json", "", ""))) == text
