"""The report in a real browser: it can be read, and a click on a number shows where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from report_fixture import make_results
from reproquant import report
from reproquant.files import sha256_file


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = make_results(tmp_path_factory.mktemp("browser"))
    report.build(results, results / "report")
    return results


def visit(browser: Browser, results: Path, width: int) -> tuple[Page, list[str]]:
    """The open page and the list that its script errors and refused requests go to."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: request.url.startswith("file:") or troubles.append(request.url))
    page.goto((results / "report" / "index.html").as_uri())
    return page, troubles


@pytest.mark.parametrize("width", [1280, 390])
def test_a_click_on_a_number_shows_its_source_and_the_servers_command(
    browser: Browser, results: Path, width: int
) -> None:
    page, troubles = visit(browser, results, width)
    id = "llama-q4km.c1.decode_tok_per_s.median"
    number = page.locator(f'table.subjects a[href="#number:{id}"]')
    assert number.is_visible()
    panel = page.locator("#panel")
    assert not panel.is_visible()
    number.click()
    words = panel.inner_text()
    assert id in words
    assert sha256_file(results / "bench" / "llama-q4km.json") in words
    assert "/levels/0/decode_tok_per_s/median" in words
    assert "llama-server' --model Q4_K_M.gguf" in words
    panel.locator("summary").filter(has_text="bench/llama-q4km.json").click()
    assert "2026-01-01T00:05:00Z" in panel.inner_text()
    assert "model/manifest.json" in panel.inner_text()
    page.keyboard.press("Escape")
    assert not panel.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert troubles == []


def test_a_dot_of_a_plot_and_a_ratio_lead_to_their_sources(browser: Browser, results: Path) -> None:
    page, troubles = visit(browser, results, 1280)
    panel = page.locator("#panel")
    page.locator('svg [data-number="llama-f16.c1.decode_tok_per_s.rounds.2"]').first.press("Enter")
    assert "/levels/0/decode_tok_per_s/rounds/2" in panel.inner_text()
    page.locator('table.subjects a[href="#number:llama-q4km.decode_tok_per_s.to_baseline"]').click()
    assert "a / b of" in panel.inner_text()
    panel.locator("a").first.click()
    assert "/levels/0/decode_tok_per_s/median" in panel.inner_text()
    assert troubles == []
