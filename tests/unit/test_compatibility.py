"""The compatibility table: well-formed, in the right order, and no older than vLLM's own source."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pydantic import ValidationError

from reproquant.engines.compatibility import Row, expectations, look_up, table
from reproquant.engines.refusals import classify
from reproquant.engines.vllm_source import Contradicted, contradictions, insist, installed, read
from reproquant.errors import FormatError
from reproquant.files import repository, store
from reproquant.study import Study
from reproquant.toolchain.python_env import PythonEnv

INSTALLED = sorted(store().glob("environments/vllm*/lib/python3*/site-packages"))


@pytest.mark.parametrize(
    "version, capability, quantization, verdict",
    [
        ("0.9.2", "7.0", "none", "works"),
        ("0.9.2", "7.0", "gptq", "works"),
        ("0.9.2", "7.0", "fp8", "refused"),
        ("0.9.2", "7.0", "awq", "refused"),
        ("0.9.2", "7.5", "fp8", "refused"),
        ("0.9.2", "8.0", "fp8", "unknown"),
        ("0.8.5.post1", "7.0", "none", "works"),
        ("0.10.1.1", "7.0", "none", "refused"),
        ("0.11.0", "7.0", "none", "unknown"),
        ("0.19.1", "7.0", "none", "slow-path"),
        ("0.19.1", "7.0", "fp8", "refused"),
        ("0.33.0", "7.0", "none", "refused"),
        ("0.33.0", "7.0", "gguf", "refused"),
        ("0.33.0", "7.5", "fp8", "unknown"),
        ("0.22.1", "9.0", "fp8", "works"),
        ("0.32.0", "cpu", "none", "works"),
        ("0.32.0", "cpu", "fp8", "refused"),
        ("0.32.0", "10.0", "fp8", "unknown"),
    ],
)
def test_a_version_on_a_gpu_has_its_verdict(
    version: str, capability: str, quantization: str, verdict: str
) -> None:
    row = look_up(version, capability, quantization)
    assert row.verdict == verdict
    assert row.why.endswith(".")
    assert bool(row.words) is (verdict == "refused")


def test_every_row_says_how_it_is_known() -> None:
    assert all(row.evidence and row.why.endswith(".") for row in table())


def test_what_is_said_of_unquantized_checkpoints_gives_no_reason_of_fp8() -> None:
    assert not [row.why for row in table() if "none" in row.quantizations and "FP8" in row.why]


def test_a_row_without_words_for_its_refusal_or_with_a_wrong_range_is_no_row() -> None:
    good = table()[0].model_dump()
    for change in ({"verdict": "refused"}, {"vllm": "0.9"}, {"capability": "volta"}, {"quantizer": "x"}):
        with pytest.raises(ValidationError):
            Row.model_validate(good | change)


@pytest.mark.parametrize(
    "version, quantization, words",
    [
        ("0.9.2", "fp8", "The quantization method fp8 is not supported for the current GPU. Minimum capability: 80. Current capability: 70."),
        ("0.19.1", "fp8", "The quantization method fp8 is not supported for the current GPU. Minimum capability: 75. Current capability: 70."),
        ("0.9.2", "compressed-tensors-fp8", "('Quantization scheme is not supported for ', 'the current GPU. Min capability: 80. ', 'Current capability: 70.')"),
        ("0.33.0", "none", "CUDA error: no kernel image is available for execution on the device"),
    ],
)  # fmt: skip
def test_the_words_of_a_refusal_are_those_that_vllm_says(version: str, quantization: str, words: str) -> None:
    row = look_up(version, "7.0", quantization)
    assert row.words and re.search(row.words, words)
    assert classify("vllm", words) is not None


def test_the_studies_expect_what_the_table_says() -> None:
    for files in ([], ["embedded.yaml"], ["tiny.yaml"]):
        study = Study.of_files([repository() / "workflow/studies" / name for name in files])
        for name, row in expectations(study).items():
            refused = study.subject(name).expected == "unsupported"
            assert row.verdict == ("refused" if refused else "works"), (study.name, name)


FP8 = """
class Fp8Config(QuantizationConfig):
    @classmethod
    def get_min_capability(cls) -> int:
        return {minimum}
"""
REGISTRY = 'def get(name):\n    methods: dict[str, type] = {"fp8": Fp8Config}\n    return methods[name]\n'
CONFIG = """
def check(method, capability):
    raise ValueError(
        f"The quantization method {method} is not supported. "
        f"Minimum capability: {method.minimum}. Current capability: {capability}.")
"""
SCHEME = """
def check(supported, capability):
    raise RuntimeError("Quantization scheme is not supported for ",
        f"the current GPU. {words}: 80. ", f"Current capability: {capability}.")
"""


def wheel(folder: Path, minimum: int = 80, words: str = "Min capability", version: str = "0.9.2") -> Path:
    """A wheel laid out as vLLM's, with nothing in it but what is read."""
    path = folder / "vllm.whl"
    quantization = "vllm/model_executor/layers/quantization"
    files = {
        f"vllm-{version}.dist-info/METADATA": "Name: vllm\n",
        "vllm/config.py": CONFIG,
        f"{quantization}/__init__.py": REGISTRY,
        f"{quantization}/fp8.py": FP8.replace("{minimum}", str(minimum)),
        f"{quantization}/compressed_tensors/schemes.py": SCHEME.replace("{words}", words),
    }
    with zipfile.ZipFile(path, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return path


def test_a_checkpoint_of_others_is_looked_up_by_the_quantization_that_the_study_names() -> None:
    study = Study.of_files([])
    rows = expectations(study)
    assert rows["vllm-gptq-int4"].verdict == "works"
    assert expectations(study, "6.0")["vllm-gptq-int4"].verdict == "unknown"


def test_minimums_and_words_are_read_out_of_a_wheel_without_importing_it(tmp_path: Path) -> None:
    found = read(wheel(tmp_path))
    assert (found.version, found.minimums) == ("0.9.2", {"fp8": 80})
    assert len(found.refusals) == 2
    assert contradictions(found) == ["awq: compatibility.yaml says minimum 75, vLLM 0.9.2 says None."]
    assert "vllm" not in sys.modules


def test_a_version_that_changes_its_minimum_contradicts_the_table(tmp_path: Path) -> None:
    wrong = contradictions(read(wheel(tmp_path, minimum=89)))
    assert "fp8: compatibility.yaml says minimum 80, vLLM 0.9.2 says 89." in wrong


def test_what_was_read_stands_beside_what_the_table_has(tmp_path: Path) -> None:
    data = read(wheel(tmp_path, minimum=89)).as_data()
    assert data["compared"] == [
        {"quantization": "fp8", "table": 80, "source": 89},
        {"quantization": "awq", "table": 75, "source": None},
    ]
    with pytest.raises(Contradicted, match="says minimum 80") as stopped:
        insist(read(wheel(tmp_path, minimum=89)))
    assert "correct compatibility.yaml or refusals.yaml" in stopped.value.remedy


def test_the_installed_vllm_is_found_without_being_imported(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    environment = PythonEnv("vllm", tmp_path / "venv", "0" * 64)
    with pytest.raises(FormatError, match="it finds no package 'vllm'"):
        installed(environment)
    package = environment.site_packages / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    assert installed(environment) == environment.site_packages


def test_a_version_that_no_row_speaks_about_contradicts_nothing(tmp_path: Path) -> None:
    found = read(wheel(tmp_path, minimum=89, version="9.9.9"))
    insist(found)
    assert found.as_data()["compared"] == []


def test_a_version_that_refuses_with_other_words_is_noticed(tmp_path: Path) -> None:
    wrong = contradictions(read(wheel(tmp_path, words="Wanted capability")))
    assert any("Wanted capability: 80" in sentence for sentence in wrong)


@pytest.mark.parametrize(
    ("minimum", "words"),
    [("None", "can be found"), ("'80'", "can be found"), ("8 0", r"can't parse .*fp8\.py")],
)
def test_a_source_that_is_laid_out_otherwise_is_refused_in_words(
    minimum: str, words: str, tmp_path: Path
) -> None:
    """A minimum that is no number; and a syntax that this Python doesn't know, as a newer one may have."""
    with pytest.raises(FormatError, match=words):
        read(wheel(tmp_path, minimum=minimum))  # type: ignore[arg-type]


def test_what_holds_no_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds no vLLM"):
        read(tmp_path)


@pytest.mark.skipif(not INSTALLED, reason="no environment with vLLM has been built here")
@pytest.mark.parametrize("place", INSTALLED, ids=lambda place: place.parents[2].name)
def test_the_vllm_that_is_installed_doesnt_contradict_the_table(place: Path) -> None:
    found = read(place)
    assert {"fp8", "gptq", "compressed-tensors"} <= found.minimums.keys()
    assert contradictions(found) == []
