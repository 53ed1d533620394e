"""From a number back to requests, commands and revisions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from finished_study import finish, with_requests
from reproquant.cli import app
from reproquant.errors import FormatError
from reproquant.files import read_json, write_json
from reproquant.report.compare import compare
from reproquant.report.explain import Node, explain

BENCH = "bench/llama-q4km.json"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The made-up study, with requests in one measurement; round 2 at concurrency 4 has a failed request."""
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPROQUANT_STORE", str(root / "store"))
        results = finish(root)
    with_requests(results, BENCH)
    yield results


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for cause in node.causes:
        yield from nodes(cause)


def test_a_figure_leads_to_the_requests_of_its_round(results: Path) -> None:
    data = read_json(results / BENCH)
    tree = explain(results, "llama-q4km.c4.decode_tok_per_s.max")
    values = data["levels"][1]["decode_tok_per_s"]["rounds"]
    place = values.index(max(values))
    (round_node,) = [cause for cause in tree.causes if "in round" in cause.title]
    # Round 2 has no figures, so the third value is round 3's.
    wanted = [0, 1, 3, 4, 5][place]
    assert f"in round {wanted} at concurrency 4" in round_node.title
    requests = [data["requests"][int(cause.title.split()[1])] for cause in round_node.causes]
    assert [(one["round"], one["concurrency"], one["index"]) for one in requests] == [
        (wanted, 4, index) for index in range(4)
    ]


def test_a_median_leads_to_the_round_in_the_middle(results: Path) -> None:
    data = read_json(results / BENCH)["levels"][0]["ttft_ms"]
    tree = explain(results, "llama-q4km.c1.ttft_ms.median")
    assert tree.causes[0].title.startswith(f"ttft_ms = {data['median']} in round")


def test_a_figure_leads_to_command_build_weights_and_the_models_source(results: Path) -> None:
    tree = {node.title: node for node in nodes(explain(results, "llama-q4km.c1.decode_tok_per_s.median"))}
    assert tree[BENCH].facts["command"][0] == "<store>/builds/llama-server"
    assert tree["llama_cpp/build.json"].facts["binaries"]
    assert tree["llama_cpp/source.json"].facts["commit"] == "0" * 40
    assert tree["model/manifest.json"].facts["source"]["kind"] == "local"
    assert tree["environments/converter.json"].facts["lock sha256"]
    assert {"gguf/Q4_K_M.gguf", "gguf/f16.gguf"} <= tree.keys()
    for name in ("gguf/f16.gguf", BENCH):
        assert tree[name].facts["started"] < tree[name].facts["finished"]
        assert "commit" in tree[name].facts["checkout"]


def test_a_ratio_leads_to_both_its_numbers(results: Path) -> None:
    tree = explain(results, "llama-q4km.decode_tok_per_s.to_baseline")
    assert tree.facts["formula"] == "a / b"
    assert [cause.title.split(" = ")[0] for cause in tree.causes] == [
        "llama-q4km.c1.decode_tok_per_s.median",
        "llama-f16.c1.decode_tok_per_s.median",
    ]


def test_an_unknown_id_is_refused_with_ids_that_are_near(results: Path) -> None:
    with pytest.raises(FormatError) as refusal:
        explain(results, "llama-q4km.c1.decode.median")
    assert "llama-q4km.c1.decode_tok_per_s.median" in refusal.value.remedy


@pytest.mark.parametrize("content", [{}, [], {"numbers": [1]}])
def test_a_file_that_is_no_report_is_one_error(content: object, tmp_path: Path) -> None:
    write_json(tmp_path / "report/report.json", content)
    with pytest.raises(FormatError, match="it is no report"):
        explain(tmp_path, "x")


@pytest.mark.parametrize("content", ["{", "[]", '{"subject": []}'])
def test_a_record_that_is_none_is_one_error(content: str, results: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(results, broken, symlinks=True)
    (broken / f"{BENCH}.prov.json").write_text(content)
    with pytest.raises(FormatError, match=r"(?s)llama-q4km\.json.*no record"):
        explain(broken, "llama-q4km.c4.decode_tok_per_s.max")
    with pytest.raises(FormatError, match=r"llama-q4km\.json\.prov\.json"):
        compare(broken, results)


def test_every_number_of_the_report_can_be_explained(results: Path) -> None:
    for number in read_json(results / "report/report.json")["numbers"]:
        assert len(list(nodes(explain(results, number["id"])))) > 1


def test_the_command_prints_a_tree_or_json(results: Path) -> None:
    words = ["explain", "llama-q4km.c1.decode_tok_per_s.median", "--results", str(results)]
    text = CliRunner().invoke(app, words)
    assert text.exit_code == 0
    assert "gguf/Q4_K_M.gguf" in text.stdout
    data = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert data["from"][-1]["title"] == BENCH
    assert CliRunner().invoke(app, ["explain", "nothing", "--results", str(results)]).exit_code == 2
