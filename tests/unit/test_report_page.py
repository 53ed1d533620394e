"""The report's page holds each thing once, and its pieces give every number its lineage."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finished_study import finish, with_requests
from report_fixture import make_results
from reproquant import report
from reproquant.files import read_json, write_json

BENCH = "bench/llama-q4km.json"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPROQUANT_STORE", str(root / "store"))
        results = finish(root)
        with_requests(results, BENCH)
        yield results


def page_of(results: Path) -> str:
    report.build(results, results.parent / "again")
    return (results.parent / "again/index.html").read_text()


def pieces_of(page: str) -> Any:
    return json.loads(re.search(r'<script type="application/json" id="pieces">(.*?)</script>', page)[1])  # type: ignore[index]


def test_a_request_stands_in_the_page_once_however_many_figures_came_of_it(results: Path) -> None:
    page = page_of(results)
    data = read_json(results / BENCH)
    figures = [
        number for number in read_json(results.parent / "again/report.json")["numbers"]
        if number.get("source", {}).get("path") == BENCH and number["source"]["pointer"].startswith("/levels/1/")
    ]  # fmt: skip
    assert len(figures) > 4 * 5
    measured = pieces_of(page)["measured"][BENCH]
    shown = [place for level in measured["levels"] for _, places in level["rounds"] for place in places]
    assert len(shown) == len(set(shown)) == 5 * 4 + 5
    for place in shown:
        assert page.count(f'"{data["requests"][place]["last_token_ms"]}"') == 1


def test_a_value_that_many_files_records_share_stands_in_the_pieces_once(results: Path) -> None:
    pieces = pieces_of(page_of(results))
    assert len(pieces["values"]) == len(set(pieces["values"]))
    places = [place for file in pieces["files"].values() for place in file["facts"].values()]
    assert {*places} == {*range(len(pieces["values"]))} and len(places) > 2 * len(pieces["values"])


def test_every_number_but_the_reports_own_leads_down_to_the_models_source(results: Path) -> None:
    pieces = pieces_of(page_of(results))
    chain = [BENCH]
    for name in chain:
        chain += pieces["files"][name]["from"]
    source = pieces["files"]["model/manifest.json"]["facts"]["source"]
    assert "model/manifest.json" in chain and '"kind": "local"' in pieces["values"][source]
    numbers = read_json(results.parent / "again/report.json")["numbers"]
    read = {number["source"]["path"] for number in numbers if "source" in number}
    assert read - pieces["files"].keys() <= {"report/claims.json"}


def test_the_page_is_the_same_whether_or_not_the_report_has_a_record_yet(results: Path) -> None:
    record = results / "report/report.json.prov.json"
    content = record.read_bytes()
    page = page_of(results)
    record.unlink()
    try:
        assert page_of(results) == page
    finally:
        record.write_bytes(content)


def test_no_text_of_a_file_ends_the_pieces(results: Path) -> None:
    data = read_json(results / BENCH)
    text = "</script><script>alert(1)</script>"
    write_json(results / BENCH, {**data, "command": [*data["command"], text]})
    try:
        page = page_of(results)
    finally:
        write_json(results / BENCH, data)
    assert page.count("</script>") == 2 and "<script>alert" not in page
    assert any(text in value for value in pieces_of(page)["values"])


def test_an_environment_that_several_servers_ran_in_is_listed_once(tmp_path: Path) -> None:
    results = make_results(tmp_path)
    packages = {f"package_{number}": f"1.{number}.7" for number in range(40)}
    for name in ("vllm-bf16", "vllm-fp8"):
        data = read_json(results / f"bench/{name}.json")
        write_json(
            results / f"bench/{name}.json", {**data, "engine_facts": {"environment": {"packages": packages}}}
        )
    page = page_of(results)
    assert page.count("<li><span>package_31</span> 1.31.7</li>") == 1 == page.count(">the same as in <a")
    place = "bench/vllm-bf16.json /engine_facts/environment/packages"
    assert f'<dt>engine facts, environment, packages</dt><dd title="{place}">' in page
    assert f'<a href="#{place.replace(" ", "")}">{place}</a>' in page
