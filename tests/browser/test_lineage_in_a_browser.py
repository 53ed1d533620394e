"""A click on any number of the report shows what `reproquant explain` tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from typer.testing import CliRunner

from finished_study import finish, with_requests
from reproquant import report
from reproquant.cli import app
from reproquant.files import read_json
from reproquant.report.explain import Node, explain, shown

BENCH = "bench/llama-q4km.json"
ID = "llama-q4km.c4.output_tok_per_s.median"
CLICKED = """id => {
  // Some numbers are only what others are computed from, so each is clicked on a mark of its own.
  const panel = document.getElementById("panel");
  const mark = document.createElement("a");
  mark.dataset.number = id;
  document.body.append(mark);
  mark.click();
  mark.remove();
  const words = (element) => element.textContent;
  const step = (node) => node.tagName === "P" ? [words(node), [], []] : [
    words(node.querySelector(":scope > summary")),
    [...node.querySelectorAll(":scope > ul > li")].map(words),
    [...node.querySelectorAll(":scope > .node")].map(step),
  ];
  const facts = [...panel.querySelectorAll("dt")].map((term) => `${words(term)} ${words(term.nextSibling).trim()}`);
  const causes = [...panel.querySelectorAll("dd > .node")].map(step);
  return [words(panel.querySelector(".panel-value")), facts, causes];
}"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("lineage")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPROQUANT_STORE", str(root / "store"))
        results = finish(root)
        with_requests(results, BENCH)
        report.build(results, results / "report")
        yield results


def step(node: Node) -> list[Any]:
    """A node as the page has it: title, facts that say something, causes."""
    facts = [f"{name} {text}" for name, value in node.facts.items() if (text := shown(value))]
    return [node.title, facts, [step(cause) for cause in node.causes]]


def test_a_click_on_any_number_shows_the_lineage_that_explain_tells(browser: Browser, results: Path) -> None:
    page = browser.new_page()
    page.goto((results / "report/index.html").as_uri())
    numbers = read_json(results / "report/report.json")["numbers"]
    assert len(numbers) > 100
    for number in numbers:
        id, tree = number["id"], explain(results, number["id"])
        value, facts, causes = page.evaluate(CLICKED, id)
        title, wanted, expected = step(tree)
        assert title == f"{id} = {value}" and f"id {id}" in facts
        if "source" in number:
            assert {*wanted} <= {*facts}
        else:
            assert f"computed as {tree.facts['formula']} of {', '.join(number['derived']['inputs'])}" in facts
        if number.get("source", {}).get("path") == "report/claims.json":
            expected = []  # its record is the report's own, which is written after the page
        assert causes == expected


def test_the_panel_of_a_clicked_number_has_every_line_that_the_command_prints(
    browser: Browser, results: Path
) -> None:
    said = CliRunner().invoke(app, ["explain", ID, "--results", str(results)], env={"COLUMNS": "100000"})
    lines = [line.strip("│├└─ ").replace(": ", " ", 1) for line in said.output.splitlines()]
    assert len(lines) > 100 and any(line.startswith("request 1") for line in lines)
    page = browser.new_page()
    page.goto((results / "report/index.html").as_uri())
    page.locator(f'svg [data-number="{ID}"], a[href="#number:{ID}"]').first.click()
    panel = page.locator("#panel")
    page.evaluate("document.querySelectorAll('#panel details').forEach((part) => (part.open = true))")
    assert panel.locator("summary", has_text="model/manifest.json").first.is_visible()
    shown = " ".join(panel.inner_text().split())
    for line in lines[1:]:
        assert " ".join(line.split()) in shown


def test_without_javascript_every_number_and_its_place_are_there(browser: Browser, results: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((results / "report/index.html").as_uri())
    page.locator(f'a[href="#number:{ID}"]').first.click()
    row = page.locator(f'tr[id="number:{ID}"]')
    assert row.is_visible()
    text = " ".join(page.locator("table.sources").inner_text().split())
    for number in read_json(results / "report/report.json")["numbers"]:
        place = number["source"]["pointer"] if "source" in number else number["derived"]["formula"]
        assert f"{number['id']} {number['value']} {number['unit']}".rstrip() + f" {place}" in text
    context.close()
