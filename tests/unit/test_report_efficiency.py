"""Ceiling, memory, energy and traces in the report; the results are made up and named SYNTHETIC."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import report_fixture
from reproquant import report
from reproquant.errors import FormatError
from reproquant.files import read_json, write_json

MEASURED = ("llama-f16", "llama-q4km", "vllm-bf16")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return report_fixture.make_results(tmp_path)


def built(results: Path) -> Path:
    target = results / "report"
    report.build(results, target)
    return target


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    data = read_json(path)
    edit(data)
    write_json(path, data)


def on_two_cards(results: Path, name: str) -> None:
    """Let a subject have run on the first of two cards."""
    cards = [
        {"index": 0, "used": True, "peak_bytes": 9_000_000_000, "temperature_c": 71.0, "sm_mhz": 1500.0,
         "power_w": 300.0, "utilization_percent": 97.0},
        {"index": 1, "used": False, "peak_bytes": 0, "temperature_c": 30.0, "sm_mhz": None, "power_w": 55.0,
         "utilization_percent": 0.0},
    ]  # fmt: skip
    change(
        results / f"bench/{name}.json",
        lambda data: (data.update(hardware="gpu", machine={}), data["watched"].update(cards=cards)),
    )
    columns = {"power_w": [300.0] * 20, "memory_bytes": [None, *[9e9] * 19]}
    traced = [{**card, "power_from": "instant", "columns": columns} for card in cards]
    kept = ("index", "used", "power_from", "columns")

    def edit(data: dict[str, Any]) -> None:
        for span in data["spans"]:
            span["cards"] = [{key: card[key] for key in kept} for card in traced]

    change(results / f"bench/{name}.telemetry.json", edit)


def test_every_figure_of_the_section_leads_to_the_measurement(results: Path) -> None:
    target = built(results)
    page, numbers = (target / "index.html").read_text(), read_json(target / "report.json")["numbers"]
    sources = {number["id"]: number.get("source") for number in numbers}
    for name in MEASURED:
        for figure in (
            "share_percent",
            "decode_tok_per_s",
            "simple_tok_per_s",
            "streamed_bytes",
            "measured.gb_per_s",
        ):
            assert f'href="#number:{name}.ceiling.{figure}"' in page
            source = sources[f"{name}.ceiling.{figure}"]
            assert source and source["path"] == f"bench/{name}.json"
            assert source["pointer"] == f"/ceiling/{figure.replace('.', '/')}"
        assert f'href="#number:{name}.energy.1.tokens_per_joule"' in page
        assert f'href="#number:{name}.peak_rss_bytes"' in page
    data = {
        subject["name"]: subject["efficiency"] for subject in read_json(target / "report.json")["subjects"]
    }
    assert data["vllm-fp8"] is None
    assert data["llama-f16"]["tokens_per_joule"] == {
        "1": "llama-f16.energy.0.tokens_per_joule",
        "4": "llama-f16.energy.1.tokens_per_joule",
    }


def test_the_markdown_has_a_row_for_each_subject_and_says_what_was_not_measured(results: Path) -> None:
    change(results / "bench/llama-f16.json", lambda data: data["ceiling"].update(note="a remark"))
    change(results / "bench/llama-f16.json", lambda data: data.update(energy=[]))
    text = (built(results) / "report.md").read_text()
    assert (
        "| llama-f16 | 60.8 | 145 | 346 MB | – | 50.0 GB/s | 130 | 812 MB | not measured | not measured |"
        in text
    )
    assert "| vllm-bf16 | 17.0 | 145 | 345 MB | – | 50.0 GB/s | 131 | 812 MB | 1.25 | 5.00 |" in text
    assert "- llama-f16, ceiling: a remark" in text
    assert "frequency\\_mhz not measured: No such file or directory" in text


def test_an_idle_second_card_is_visible(results: Path) -> None:
    on_two_cards(results, "llama-q4km")
    target = built(results)
    text, page = (target / "report.md").read_text(), (target / "index.html").read_text()
    assert "llama-q4km, GPU 1, used: no, memory at most 0 B, median load 0 %, median power 55.0 W" in text
    assert "llama-q4km, GPU 0, used: yes, memory at most 9.00 GB, median load 97.0 %" in text
    assert "median SM clock" not in text.split("GPU 1, used: no")[1].splitlines()[0]
    assert 'href="#number:llama-q4km.peak_gpu_bytes"' in page
    trace = page[page.index('data-plot="telemetry-llama-q4km"') :].split("</svg>")[0]
    assert all(words in trace for words in ("GPU 0", "GPU 1", "power, W", "memory, GB"))
    assert "GPU 0" not in page[page.index('data-plot="telemetry-llama-f16"') :].split("</svg>")[0]


def test_every_watched_subject_has_a_trace_and_no_other(results: Path) -> None:
    page = (built(results) / "index.html").read_text()
    for name in MEASURED:
        assert f'data-plot="telemetry-{name}"' in page
    assert "telemetry-vllm-fp8" not in page
    (results / "bench/llama-f16.telemetry.json").unlink()
    assert 'data-plot="telemetry-llama-f16"' not in (built(results) / "index.html").read_text()


def test_rounds_with_hardly_any_time_between_are_shaded_as_one(results: Path) -> None:
    def shades() -> int:
        page = (built(results) / "index.html").read_text()
        trace = page[page.index('data-plot="telemetry-llama-f16"') :].split("</svg>")[0]
        panels = re.findall(r'<path d="([^"]*)"[^>]*style="fill: var\(--grid\)"', trace)
        assert len(panels) > 1 and len({path.count("M") for path in panels}) == 1
        return panels[0].count("M")

    windows = 2 * len(read_json(results / "bench/llama-f16.telemetry.json")["spans"][0]["windows"])
    assert shades() == windows > 2
    change(
        results / "bench/llama-f16.telemetry.json",
        lambda data: data["spans"][0]["windows"][0].update(
            end_s=data["spans"][0]["windows"][1]["start_s"] - 0.01
        ),
    )
    assert shades() == windows - 1


def test_measurements_without_telemetry_are_reported_without_the_section(results: Path) -> None:
    for name in MEASURED:
        change(
            results / f"bench/{name}.json",
            lambda data: [data.pop(key) for key in ("watched", "energy", "ceiling")],
        )
    target = built(results)
    assert "Ceiling, memory and energy" not in (target / "index.html").read_text()
    assert "Ceiling, memory and energy" not in (target / "report.md").read_text()


@pytest.mark.parametrize(
    "edit",
    [lambda data: data.update(more=1), lambda data: data["spans"][0].update(time_s=["soon"])],
)
def test_a_file_that_is_no_telemetry_is_refused(
    edit: Callable[[dict[str, Any]], object], results: Path
) -> None:
    change(results / "bench/llama-f16.telemetry.json", edit)
    with pytest.raises(FormatError, match=r"llama-f16\.telemetry\.json"):
        built(results)
