"""kill -9 of the writer between two layers, then the same command again."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import test_quantize
import tiny_checkpoint
import torch

from reproquant.files import sha256_file

ROWS = 60


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in folder.iterdir()}


def command(folder: Path, name: str, mode: str = "corrected") -> list[str]:
    return test_quantize.program(folder / "source", folder / name, mode, rows=ROWS)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``source``, ``whole`` (from a run of its own) and what a run killed at layer 2 left."""
    folder = tmp_path_factory.mktemp("killed")
    tiny_checkpoint.write(folder / "source", "qwen2", torch.bfloat16)
    subprocess.run(command(folder, "whole"), check=True, capture_output=True)
    process = subprocess.Popen(command(folder, "fp8"), stdout=subprocess.PIPE, text=True)
    assert process.stdout
    for line in process.stdout:
        if line.startswith("layer 1 of 2"):
            process.kill()
    assert process.wait() == -9
    return folder


@pytest.fixture
def again(killed: Path, tmp_path: Path) -> Path:
    """A copy of it to go on with."""
    return shutil.copytree(killed, tmp_path / "again")


def test_a_killed_run_has_no_index_and_no_facts(killed: Path) -> None:
    assert not (killed / "fp8.facts.json").exists()
    assert {path.suffix for path in (killed / "fp8").iterdir()} == {".safetensors"}


def test_a_killed_run_goes_on_with_the_next_layer_and_gives_the_same_bytes(again: Path) -> None:
    done = subprocess.run(command(again, "fp8"), capture_output=True, text=True, check=True)
    assert "going on at layer 2 of 2" in done.stdout
    assert "layer 1 of 2" not in done.stdout
    assert digests(again / "fp8") == digests(again / "whole")
    facts = [json.loads((again / f"{name}.facts.json").read_text()) for name in ("fp8", "whole")]
    assert [one.pop("layers_of_a_killed_run") for one in facts] == [1, 0]
    assert facts[0]["input_scale"] == facts[1]["input_scale"]


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (flip_a_bit, "fp8/model-00002-of-00004.safetensors"),
        (Path.unlink, "fp8/model-00002-of-00004.safetensors"),
        (flip_a_bit, "fp8.unfinished/states-1.bin"),
        (cut_short, "fp8.unfinished/progress.json"),
    ],
)
def test_a_damaged_left_over_is_thrown_away(again: Path, damage: Callable[[Path], None], file: str) -> None:
    damage(again / file)
    done = subprocess.run(command(again, "fp8"), capture_output=True, text=True, check=True)
    assert "layer 1 of 2" in done.stdout
    assert digests(again / "fp8") == digests(again / "whole")


def test_what_was_left_of_other_work_is_thrown_away(again: Path) -> None:
    done = subprocess.run(command(again, "fp8", "autofp8"), capture_output=True, text=True, check=True)
    assert "starting anew" in done.stdout
    assert "layer 1 of 2" in done.stdout
    config = json.loads((again / "fp8/config.json").read_text())
    assert config["reproquant"]["activation_scales"] == "autofp8"
