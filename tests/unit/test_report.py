"""The report says what the results say: every figure from a file, every refusal in the engine's words."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from report_fixture import REFUSAL, make_results
from reproquant import report, study
from reproquant.errors import FormatError
from reproquant.files import read_json, repository, sha256_file, write_json
from reproquant.provenance.lineage import FORMULAS, dereference
from reproquant.report.content import read_content
from reproquant.report.numbers import Numbers
from reproquant.report.plots import plots
from reproquant.report.subjects import Subject
from reproquant.report.templating import environment, render


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return make_results(tmp_path)


@pytest.fixture
def built(results: Path) -> Path:
    report.build(results, results / "report")
    return results / "report"


def build(results: Path) -> Path:
    target = results.parent / "again"
    report.build(results, target)
    return target


def change(path: Path, edit: Callable[[Any], object]) -> None:
    data = read_json(path)
    edit(data)
    write_json(path, data)


def answer_of(target: Path) -> str:
    return re.search(r"\*\*(.+)\*\*", (target / "report.md").read_text())[1]  # type: ignore[index]


def test_every_number_of_report_json_stands_in_the_file_that_it_names(results: Path, built: Path) -> None:
    data = read_json(built / "report.json")
    values = {number["id"]: number["value"] for number in data["numbers"]}
    assert len(values) == len(data["numbers"]) > 100
    for number in data["numbers"]:
        if "source" in number:
            source = number["source"]
            assert sha256_file(results / source["path"]) == source["sha256"]
            assert dereference(read_json(results / source["path"]), source["pointer"]) == number["value"]
        else:
            inputs = [values[id] for id in number["derived"]["inputs"]]
            assert FORMULAS[number["derived"]["formula"]](inputs) == number["value"]


def test_every_number_on_the_page_leads_to_a_row_with_its_source(built: Path) -> None:
    page = (built / "index.html").read_text()
    rows = set(re.findall(r'<tr id="number:([^"]+)"', page))
    linked = set(re.findall(r'href="#number:([^"]+)"', page))
    drawn = set(re.findall(r'data-number="([^"]+)"', page))
    assert linked and drawn and linked | drawn <= rows


def test_a_template_that_shows_a_bare_figure_is_refused(built: Path, tmp_path: Path) -> None:
    (tmp_path / "t.j2").write_text("{{ figure }}")
    jinja = environment(tmp_path, number=lambda n: n.id, quote=lambda q: q.text, escape=str)
    for figure in (1, 1.5, True, None, [1], ("text", 2)):
        with pytest.raises(FormatError, match="neither text nor a number with a source"):
            render(jinja, "t.j2", figure=figure)


def test_no_template_reaches_behind_a_number_for_its_bare_value() -> None:
    for template in (repository() / "workflow" / "report").glob("*.j2"):
        printed = re.findall(r"\{\{(.*?)\}\}", template.read_text(), flags=re.DOTALL)
        assert printed
        assert not [
            text for text in printed if re.search(r"\.value|%|\|\s*(string|format|round|length)|~", text)
        ]


def test_a_plot_of_a_bare_figure_is_refused(results: Path, built: Path) -> None:
    content = read_content(Numbers(results), study.Study.load(results / "study.json"))
    subject: Subject = content.subjects[0]
    object.__setattr__(subject.single.figures["decode_tok_per_s"], "median", 12.5)
    with pytest.raises(TypeError, match="draws numbers with a source"):
        plots(content)


def test_every_round_is_a_dot_in_the_decode_plot(built: Path) -> None:
    page = (built / "index.html").read_text()
    svg = re.search(r'<svg[^>]+data-plot="decode".*?</svg>', page, flags=re.DOTALL)
    assert svg
    for subject in ("llama-f16", "llama-q4km", "vllm-bf16"):
        for number in range(5):
            assert f'data-number="{subject}.c1.decode_tok_per_s.rounds.{number}"' in svg[0]


def test_the_same_results_give_the_same_bytes(results: Path, built: Path) -> None:
    again = build(results)
    for name in ("index.html", "report.md", "report.json"):
        assert (again / name).read_bytes() == (built / name).read_bytes()


class Loads(HTMLParser):
    """Collects what a page would load from elsewhere, and ids that occur twice."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.loads.append(f"{tag} {name}={value}")
            if name == "id":
                self.ids.append(value or "")


def test_the_page_needs_no_other_file_and_repeats_no_id(built: Path) -> None:
    page = (built / "index.html").read_text()
    parser = Loads()
    parser.feed(page)
    assert parser.loads == []
    assert len(parser.ids) == len(set(parser.ids))
    assert "@import" not in page and "url(http" not in page


def test_the_answer_names_the_fastest_and_says_that_a_cpu_is_no_gpu(built: Path) -> None:
    assert answer_of(built).startswith("On this CPU, llama-q4km decodes fastest for one request")
    for name in ("index.html", "report.md"):
        assert "says nothing about GPUs" in (built / name).read_text()


def test_the_note_of_the_model_is_quoted_and_escaped(built: Path) -> None:
    assert "no such model exists &amp; nothing ran" in (built / "index.html").read_text()
    assert "no such model exists & nothing ran" in (built / "report.md").read_text()


def test_words_of_an_engine_can_not_become_markup(results: Path) -> None:
    change(results / "bench" / "vllm-fp8.json", lambda m: m.update(evidence="<script>alert(1)</script>"))
    page = (build(results) / "index.html").read_text()
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page


def test_a_refusal_stands_in_the_engines_own_words_with_what_was_expected(built: Path) -> None:
    for name in ("index.html", "report.md"):
        text = (built / name).read_text()
        assert REFUSAL in text
        assert "expected it to be unsupported, and it was." in text
        assert "compatibility table has it as refused: The CPU build has no kernel" in text


def test_a_measurement_that_is_not_trusted_is_shown_but_never_wins(results: Path) -> None:
    change(
        results / "bench" / "llama-q4km.json",
        lambda m: m.update(status="rejected", reasons=["it grew 86 °C hot"]),
    )
    target = build(results)
    assert "llama-f16 decodes fastest" in answer_of(target)
    text = (target / "report.md").read_text()
    assert "it grew 86 °C hot" in text and "| llama-q4km | rejected | 6" in text
    assert "Not ranked: llama-q4km, vllm-fp8." in text


def test_an_unstable_subject_is_ranked_where_its_range_is_clear_of_all_others(results: Path) -> None:
    change(
        results / "bench" / "llama-q4km.json", lambda m: m.update(status="unstable", reasons=["it swings"])
    )
    target = build(results)
    assert "llama-q4km decodes fastest for one request (198 tok/s, unstable)" in answer_of(target)
    text = (target / "report.md").read_text()
    assert "Unstable: llama-q4km; such a subject is ranked only where" in text
    assert "Not ranked: vllm-fp8." in text


def test_an_unstable_subject_is_not_ranked_where_its_range_meets_another(results: Path) -> None:
    def swing(measurement: Any) -> None:
        measurement.update(status="unstable", reasons=["it swings"])
        slowest = read_json(results / "bench" / "llama-f16.json")["levels"][0]["decode_tok_per_s"]["max"]
        decode = measurement["levels"][0]["decode_tok_per_s"]
        decode.update(min=slowest, rounds=[slowest, *decode["rounds"][1:]])

    change(results / "bench" / "llama-q4km.json", swing)
    target = build(results)
    answer = answer_of(target)
    assert "llama-f16 decodes fastest of those that could be ranked for one request" in answer
    assert (
        "The decode of llama-q4km for one request may be higher than that of llama-f16"
        in (target / "report.md").read_text()
    )
    assert "; llama-q4km gives the most output at 4 requests at once (275 tok/s, unstable, from" in answer
    row = next(line for line in (target / "report.md").read_text().splitlines() if "| llama-f16" in line)
    assert row.startswith("| llama-f16")


def test_of_unstable_subjects_that_meet_each_other_above_the_first_none_is_called_slower(
    results: Path,
) -> None:
    def swing(measurement: Any, low: float) -> None:
        measurement.update(status="unstable", reasons=["it swings"])
        rounds = [low, low + 50, low + 100]
        measurement["levels"][0]["decode_tok_per_s"].update(
            min=low, max=low + 100, median=low + 50, rounds=rounds
        )

    change(results / "bench" / "llama-q4km.json", lambda m: swing(m, 200))
    change(results / "bench" / "vllm-bf16.json", lambda m: swing(m, 220))
    target = build(results)
    assert "llama-f16 decodes fastest of those that could be ranked" in answer_of(target)
    text = (target / "report.md").read_text()
    for name, fastest in (("llama-q4km", "300"), ("vllm-bf16", "320")):
        assert f"The decode of {name} for one request may be higher than that of llama-f16" in text
        assert f"its fastest round ({fastest} tok/s) is above the slowest of llama-f16" in text


def test_where_all_ranges_meet_nobody_wins(results: Path) -> None:
    same = read_json(results / "bench" / "llama-f16.json")["levels"]
    for name in ("llama-q4km", "llama-f16", "vllm-bf16"):
        change(results / "bench" / f"{name}.json", lambda m: m.update(status="unstable", levels=same))
    target = build(results)
    assert "no subject gave figures that may be compared" in answer_of(target)
    assert "Not ranked: llama-f16, llama-q4km, vllm-bf16, vllm-fp8." in (target / "report.md").read_text()


def test_an_emulated_subject_is_called_so_everywhere_and_never_wins(results: Path) -> None:
    change(results / "bench" / "llama-q4km.json", lambda m: m.update(emulated=True))
    target = build(results)
    assert "llama-f16 decodes fastest" in answer_of(target)
    text, page = ((target / name).read_text() for name in ("report.md", "index.html"))
    assert "| llama-q4km | ok, emulated |" in text and "### llama-q4km: ok, emulated" in text
    for shown in (text, page):
        assert "Emulated: llama-q4km, without FP8 units" in shown
        assert "Not ranked: vllm-fp8." in shown
    assert page.count(">llama-q4km (emulated)<") == 2 and ">llama-q4km (ok, emulated)  1" in page
    row = page[page.index("llama.cpp on Q4_K_M, emulated") :]
    assert "the baseline" not in row[: row.index("</tr>")]
    data = {subject["name"]: subject for subject in read_json(target / "report.json")["subjects"]}
    assert [data[name]["emulated"] for name in ("llama-q4km", "llama-f16")] == [True, False]
    assert data["llama-q4km"]["to_baseline"] == {}


def test_a_flagged_winner_is_called_flagged_in_the_answer(results: Path) -> None:
    change(results / "bench" / "llama-q4km.json", lambda m: m.update(status="flagged", reasons=["noisy"]))
    assert "tok/s, flagged)" in answer_of(build(results))


def test_two_winners_are_both_named(results: Path) -> None:
    def boost(measurement: Any) -> None:
        output = measurement["levels"][1]["output_tok_per_s"]
        output.update({key: output[key] + 1000 for key in ("median", "min", "max")})
        output["rounds"] = [value + 1000 for value in output["rounds"]]

    change(results / "bench" / "vllm-bf16.json", boost)
    answer = answer_of(build(results))
    assert "llama-q4km decodes fastest" in answer and "vllm-bf16 gives the most output" in answer


def test_rounds_that_overlap_are_called_a_close_call(results: Path, built: Path) -> None:
    assert "close call" not in (built / "report.md").read_text()
    fastest = read_json(results / "bench" / "llama-q4km.json")["levels"]
    change(results / "bench" / "llama-f16.json", lambda m: m.update(levels=fastest))
    assert "is a close call" in (build(results) / "report.md").read_text()


def test_a_close_call_names_all_that_overlap_with_the_first(results: Path) -> None:
    def around(measurement: Any, *rounds: float) -> None:
        measurement["levels"][0]["decode_tok_per_s"].update(
            median=rounds[1], min=rounds[0], max=rounds[2], rounds=list(rounds)
        )

    change(results / "bench" / "llama-q4km.json", lambda m: around(m, 98, 100, 102))
    change(results / "bench" / "llama-f16.json", lambda m: around(m, 94, 95, 96))
    change(results / "bench" / "vllm-bf16.json", lambda m: around(m, 85, 90, 99))
    text = (build(results) / "report.md").read_text()
    said = "its slowest round (98 tok/s) is not above the fastest of vllm-bf16 (99 tok/s)."
    assert f"The decode of llama-q4km for one request is a close call: {said}" in text


def test_nothing_to_rank_is_said_plainly(results: Path) -> None:
    for path in (results / "bench").glob("*[!vy].json"):
        change(path, lambda m: m.update(status="unsupported", levels=[]))
    assert answer_of(build(results)) == "On this CPU, no subject gave figures that may be compared."


def test_the_plot_of_outputs_names_no_leader_where_none_can_be_ranked(results: Path) -> None:
    for name in ("llama-f16", "llama-q4km", "vllm-bf16"):
        change(results / "bench" / f"{name}.json", lambda m: m.update(status="rejected", reasons=["hot"]))
    page = (build(results) / "index.html").read_text()
    assert "none of these subjects can be ranked" in page
    assert "depends on how many requests" not in page and "gives the most output" not in page


def test_every_subject_is_named_in_every_plot_however_many_meet_at_the_top(results: Path) -> None:
    fastest = read_json(results / "bench/llama-q4km.json")
    names = [f"llama-again-{number}" for number in range(6)]
    for name in names:
        write_json(results / f"bench/{name}.json", fastest | {"subject": name})
        shutil.copy(results / "bench/llama-q4km.json.prov.json", results / f"bench/{name}.json.prov.json")
    same = [{"name": name, "engine": "llama_cpp", "artifact": "Q4_K_M"} for name in names]
    change(results / "study.json", lambda data: data["subjects"].extend(same))
    page = (build(results) / "index.html").read_text()
    for plot in ("decode", "output", "size"):
        drawn = page[page.index(f'data-plot="{plot}"') :].split("</svg>")[0]
        missing = [name for name in (*names, "llama-q4km", "llama-f16") if f">{name}" not in drawn]
        assert not missing, (plot, missing)


def test_figures_that_are_grey_are_those_that_can_not_be_believed(results: Path) -> None:
    change(results / "bench" / "llama-f16.json", lambda m: m.update(status="unstable", reasons=["it swings"]))
    change(results / "bench" / "llama-q4km.json", lambda m: m.update(status="rejected", reasons=["hot"]))
    page = (build(results) / "index.html").read_text()
    rows = re.findall(r'<tr class="(\w+)">\s*<th scope="row">(\S+)', page)
    grey = {name: kind for kind, name in rows}
    assert grey == {
        "llama-f16": "believed",
        "vllm-bf16": "believed",
        "llama-q4km": "unbelieved",
        "vllm-fp8": "unbelieved",
    }


def test_a_missing_measurement_is_an_error_that_names_it(results: Path) -> None:
    (results / "bench" / "vllm-bf16.json").unlink()
    with pytest.raises(FormatError, match=r"bench/vllm-bf16\.json"):
        build(results)


def test_a_file_that_is_no_measurement_is_an_error_that_names_the_key(results: Path) -> None:
    change(results / "bench" / "vllm-bf16.json", lambda m: m.pop("workload"))
    with pytest.raises(FormatError, match="workload"):
        build(results)


def test_the_sizes_of_a_sharded_checkpoint_are_summed_with_their_sources(results: Path) -> None:
    shard = {"path": "model-00002.safetensors", "bytes": 1000, "sha256": "0" * 64}
    change(results / "model" / "manifest.json", lambda m: m["files"].append(shard))
    numbers = {n["id"]: n for n in json.loads((build(results) / "report.json").read_text())["numbers"]}
    assert numbers["checkpoint.bytes"]["value"] == 383_001_000
    assert numbers["checkpoint.bytes"]["derived"]["formula"] == "sum"


def test_tensors_that_fell_back_are_listed(results: Path) -> None:
    fallback = {"tensor": "blk.0.attn_q.weight", "promised": "Q4_K", "found": "Q5_0"}
    change(
        results / "gguf" / "Q4_K_M.inspect.json", lambda m: m.update(as_promised=False, fallbacks=[fallback])
    )
    page = (build(results) / "index.html").read_text()
    assert "blk.0.attn_q.weight" in page and ", some tensors fell back" in page


def test_a_single_ranked_subject_is_called_the_only_one(results: Path) -> None:
    for name in ("llama-f16", "vllm-bf16"):
        change(
            results / "bench" / f"{name}.json", lambda m: m.update(status="rejected", reasons=["too noisy"])
        )
    answer = answer_of(build(results))
    assert answer.startswith(
        "On this CPU, only llama-q4km could be ranked: it decodes 198 tok/s for one request"
    )


def test_a_cross_check_is_shown_with_both_figures_and_its_verdict(built: Path) -> None:
    ids = {number["id"] for number in read_json(built / "report.json")["numbers"]}
    page, text = (built / "index.html").read_text(), (built / "report.md").read_text()
    for key in ("left", "right", "difference"):
        assert f"llama-q4km.checks.0.{key}" in ids
        assert f'href="#number:llama-q4km.checks.0.{key}"' in page
    assert (
        "| llama-q4km | decode | 1 | client | 196 tok/s | server's clock | 197 tok/s | -0.497 % | ok |"
        in text
    )


def test_a_study_without_cross_checks_has_no_such_table(results: Path) -> None:
    for path in (results / "bench").glob("*[!vy].json"):
        if ".prov" not in path.name:
            change(path, lambda m: m.update(checks=[]))
    again = build(results)
    assert "Cross-checks" not in (again / "index.html").read_text() + (again / "report.md").read_text()


def test_servers_that_tokenize_differently_are_told(results: Path, built: Path) -> None:
    words = "tokenize the prompt differently"
    assert words not in (built / "report.md").read_text()
    other = results / "bench" / "vllm-bf16.json"
    change(other, lambda m: m["workload"].update(ids_sha256="0" * 64))
    assert words in (build(results) / "report.md").read_text()
