"""Recipes: what changes them, what doesn't, and what they cost."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from reproquant.files import repository
from reproquant.recipe import recipe, recipe_digest
from reproquant.stages import STAGES
from reproquant.study import Study

ROOT = repository()


@pytest.fixture
def study() -> Study:
    return Study.resolve(yaml.safe_load((ROOT / "config.yaml").read_text()))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what recipes read, free to be edited."""
    for name in ("scripts", "envs", "workflow"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    shutil.copy(ROOT / "config.yaml", tmp_path)
    return tmp_path


def digests(checkout: Path) -> dict[str, str]:
    """The digest of every stage's recipe, computed by the checkout's own code."""
    program = textwrap.dedent("""
        import json, yaml
        from reproquant.recipe import recipe_digest
        from reproquant.stages import STAGES
        from reproquant.study import Study
        study = Study.resolve(yaml.safe_load(open("config.yaml")))
        wildcards = {
            "build_environment": [{"environment": e} for e in ("converter", "fp8", "vllm-v100")],
            "fetch_checkpoint": [{"checkpoint": "gptq-int4"}],
            "quantize_gguf": [{"type": "Q4_K_M"}],
            "inspect_gguf": [{"type": "Q4_K_M"}],
            "benchmark": [{"subject": s} for s in ("vllm-fp16-tp1", "llama-q4km")],
            "benchmark_again": [{"subject": "vllm-fp16-tp1"}],
            "evaluate_quality": [{"artifact": a} for a in ("Q4_K_M", "fp8-autofp8")],
        }
        print(json.dumps({
            " ".join([stage, *chosen.values()]): recipe_digest(stage, study, **chosen)
            for stage in STAGES for chosen in wildcards.get(stage, [{}])
        }))
    """)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=checkout,
        env={"PYTHONPATH": str(checkout / "scripts"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def edit(checkout: Path, name: str, old: str, new: str) -> None:
    path = checkout / name
    text = path.read_text()
    assert old in text, f"{name} doesn't hold {old!r}"
    path.write_text(text.replace(old, new, 1))


EVERY_STAGE_THAT_RUNS_A_PROGRAM = {
    "build_environment converter", "build_environment fp8", "build_environment vllm-v100", "read_vllm",
    "fetch_llama_cpp", "build_llama_cpp", "prove_cuda", "fetch_model", "fetch_checkpoint gptq-int4", "convert_gguf", "quantize_gguf Q4_K_M",
    "quantize_fp8", "benchmark vllm-fp16-tp1", "benchmark_again vllm-fp16-tp1", "benchmark llama-q4km",
    "evaluate_original", "evaluate_quality Q4_K_M", "evaluate_quality fp8-autofp8",
}  # fmt: skip

EDITS = {
    "a comment": ("scripts/reproquant/gguf/quantize.py", "\nfrom __future__", "\n# a remark\nfrom __future__", set()),
    "a helper of programs": (
        "scripts/reproquant/process.py", "TAIL_LINES = 12", "TAIL_LINES = 13", EVERY_STAGE_THAT_RUNS_A_PROGRAM,
    ),
    "one stage's script": (
        "scripts/quantize_gguf.py", "threads, run.log", "threads + 0, run.log", {"quantize_gguf Q4_K_M"},
    ),
    "the reader of machine code": (
        "scripts/reproquant/toolchain/fatbin.py", "SHT_NOBITS = 8", "SHT_NOBITS = 9", {"prove_cuda"},
    ),
    "a value that one stage reads": ("config.yaml", "rows: 12", "rows: 11", {"quantize_fp8", "evaluate_quality fp8-autofp8", "report"}),
    "the vLLM lock": (
        "envs/vllm-v100.lock", "", "# bump\n",
        {"build_environment vllm-v100", "read_vllm", "benchmark vllm-fp16-tp1", "benchmark_again vllm-fp16-tp1"},
    ),
    "the vLLM flags": (
        "config.yaml", "max_model_len: 8192", "max_model_len: 4096",
        {"benchmark vllm-fp16-tp1", "benchmark_again vllm-fp16-tp1", "report"},
    ),
    "the prompt": ("workflow/data/prompt_zh.txt", "", "又", {"benchmark vllm-fp16-tp1", "benchmark_again vllm-fp16-tp1", "benchmark llama-q4km"}),
    "the calibration text": ("workflow/data/calibration.txt", "", "x", {"quantize_fp8", "evaluate_quality fp8-autofp8"}),
    "the evaluation text": ("workflow/data/evaluation.txt", "", "x", {"evaluate_original"}),
    "the number of chunks": ("config.yaml", "chunks: 7", "chunks: 6", {"evaluate_original", "report"}),
    "llama.cpp's commit": (
        "config.yaml", "commit: 0c1e5709", "commit: 1c1e5709",
        {"fetch_llama_cpp", "build_llama_cpp", "report"},
    ),
    "the model's revision": ("config.yaml", "revision: a09a", "revision: b09a", {"fetch_model", "report"}),
    "the GPTQ checkpoint's revision": (
        "config.yaml", "revision: e9c9", "revision: f9c9", {"fetch_checkpoint gptq-int4", "report"},
    ),
    "a number of GPUs": (
        "config.yaml", "artifact: Q4_K_M, gpus: 1", "artifact: Q4_K_M, gpus: 2",
        {"benchmark llama-q4km", "report"},
    ),
    "the drift that is allowed": (
        "config.yaml", "  baseline: vllm", "  limits: {baseline_drift_percent: 3}\n  baseline: vllm", {"report"},
    ),
    "another baseline": ("config.yaml", "baseline: vllm-fp16-tp1", "baseline: llama-q4km", {"report"}),
    "a style sheet": ("workflow/report/style.css", "", "/* */", {"report"}),
    "the key order": ("config.yaml", "  prompt_tokens: 512\n  output_tokens: 128\n",
                      "  output_tokens: 128\n  prompt_tokens: 512\n", set()),
    "two values swapped": ("config.yaml", "  prompt_tokens: 512\n  output_tokens: 128\n",
                           "  prompt_tokens: 128\n  output_tokens: 512\n",
                           {"benchmark vllm-fp16-tp1", "benchmark_again vllm-fp16-tp1", "benchmark llama-q4km", "report"}),
}  # fmt: skip


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_changes_exactly_the_recipes_that_depend_on(what: str, checkout: Path) -> None:
    name, old, new, expected = EDITS[what]
    before = digests(checkout)
    edit(checkout, name, old, new)
    after = digests(checkout)
    assert {stage for stage in before if before[stage] != after[stage]} == expected


def test_a_docstring_is_no_part_of_a_recipe(checkout: Path) -> None:
    before = digests(checkout)
    path = checkout / "scripts/quantize_gguf.py"
    path.write_text('"""Other words."""\n' + path.read_text().split("\n", 1)[1])
    assert digests(checkout) == before


def test_every_stage_has_a_program_and_a_rule() -> None:
    rules = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    for stage in STAGES:
        assert (ROOT / "scripts" / f"{stage}.py").is_file()
        assert f"rule {stage}:" in rules
        assert f'recipe=recipe("{stage}")' in rules


def test_a_recipe_names_the_module_that_another_python_runs(study: Study) -> None:
    assert "reproquant/fp8/quantize.py" in recipe("quantize_fp8", study)["code"]


def test_an_emulated_subject_depends_on_every_file_of_the_plugin_and_no_other_does(study: Study) -> None:
    plugin = ROOT / "workflow/plugins/fp8_emulated"
    every = {
        str(path.relative_to(ROOT))
        for path in plugin.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    files = {
        name: set(recipe("benchmark", study, subject=name)["files"])
        for name in ("vllm-fp8-emulated", "vllm-fp8")
    }
    assert files["vllm-fp8-emulated"] - files["vllm-fp8"] == every
    assert not files["vllm-fp8"] & every


def test_equal_studies_give_equal_digests(study: Study) -> None:
    again = Study.resolve(study.dump())
    assert recipe_digest("fetch_model", study) == recipe_digest("fetch_model", again)


FORBIDDEN = {
    "__import__",
    "import_module",
    "exec",
    "eval",
    "run_path",
    "exec_module",
    "spec_from_file_location",
}


def test_no_stage_imports_what_a_recipe_can_not_see() -> None:
    """A module that is loaded by a computed name would be missing in the code's digest."""
    for path in (ROOT / "scripts").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                assert name not in FORBIDDEN, f"{path}:{node.lineno} calls {name}"


def test_every_module_that_another_python_runs_is_named_by_a_stage() -> None:
    named = {module for stage in STAGES.values() for module in stage.modules}
    run = set()
    for path in (ROOT / "scripts").rglob("*.py"):
        run |= set(re.findall(r"run_module\(\s*\"([\w.]+)\"", path.read_text()))
    assert run
    assert run <= named
