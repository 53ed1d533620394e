"""The stage that proves a CUDA build, run as the rule runs it, on a SYNTHETIC llama-server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import synthetic_elf as made
from reproquant.files import read_json, repository, sha256_file, write_json
from reproquant.recipe import recipe_digest
from reproquant.study import Study

STUDY = Study.resolve(yaml.safe_load((repository() / "config.yaml").read_text()))
GGML = ("_Z9mul_mat_qv", "_Z13mul_mat_vec_qv", "_Z18flash_attn_ext_vecv")


def prove(results: Path, architecture: int) -> subprocess.CompletedProcess[str]:
    """Run the stage of the V100 study on a server with code for ``architecture``."""
    (results / "llama_cpp/bin").mkdir(parents=True)
    image = made.image(architecture, made.cubin(architecture, *GGML))
    server = made.program(results / "llama_cpp/bin/llama-server", image)
    write_json(results / "study.json", STUDY.dump())
    binaries = {"llama-server": {"sha256": sha256_file(server)}}
    write_json(results / "llama_cpp/build.json", {"binaries": binaries})
    options = {
        "study": results / "study.json",
        "recipe": recipe_digest("prove_cuda", STUDY),
        "log": results / "logs/prove_cuda.log",
        "llama-cpp": results / "llama_cpp/build.json",
        "output": results / "llama_cpp/machine_code.json",
    }
    words = [str(word) for option, value in options.items() for word in (f"--{option}", value)]
    script = repository() / "scripts/prove_cuda.py"
    return subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)


def test_a_build_with_code_for_the_studys_card_gets_its_proof(tmp_path: Path) -> None:
    done = prove(tmp_path, 70)
    assert done.returncode == 0, done.stderr
    facts = read_json(tmp_path / "llama_cpp/machine_code.json")
    assert facts["machine_code"]["sm_70"]["kernels"] == 3
    record = read_json(tmp_path / "llama_cpp/machine_code.json.prov.json")
    assert record["predicate"]["buildDefinition"]["externalParameters"]["study"] == [70]


@pytest.mark.parametrize("architecture", [75, 90])
def test_a_build_without_it_stops_the_run_in_three_lines(tmp_path: Path, architecture: int) -> None:
    done = prove(tmp_path, architecture)
    assert done.returncode == 2
    assert f"it has no machine code for sm_70; it holds sm_{architecture} (1 images)" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "llama_cpp/machine_code.json").exists()
