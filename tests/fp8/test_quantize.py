from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import tiny_checkpoint
import torch
from safetensors.torch import load_file
from torch import Tensor
from whole_model import WholeModel

from reproquant.files import sha256_file
from reproquant.fp8.calibrate import CalibrationError, token_rows

ROWS, ROW_TOKENS = 5, 128
TEXT = "Counting is easy; knowing what was counted is not. 数数容易，知道数的是什么却难。" * 100
CASES = [
    ("qwen2", torch.bfloat16, "autofp8"),
    ("qwen2", torch.bfloat16, "corrected"),
    ("qwen3", torch.bfloat16, "autofp8"),
    ("llama", torch.bfloat16, "autofp8"),
    ("llama", torch.float32, "autofp8"),
    ("llama", torch.float16, "corrected"),
]


def program(
    source: Path,
    target: Path,
    mode: str,
    rows: int = ROWS,
    fused: str = "separate",
    scheme: str = "static",
    **options: object,
) -> list[str]:
    """The command line that the workflow would use; the facts lie beside the target."""
    text = source.parent / "calibration.txt"
    text.write_text(TEXT, encoding="utf-8")
    words = {
        "--source": source,
        "--target": target,
        "--calibration": text,
        "--rows": rows,
        "--row-tokens": ROW_TOKENS,
        "--activation-scales": mode,
        "--fused-scales": fused,
        "--activation-scheme": scheme,
        "--facts": target.with_suffix(".facts.json"),
        "--unfinished": target.with_suffix(".unfinished"),
        "--device": "cpu",
        "--form": "raw",
    }
    words |= {f"--{name}": value for name, value in options.items()}
    flat = [str(word) for pair in words.items() for word in pair]
    return [sys.executable, "-m", "reproquant.fp8.quantize", *flat]


def quantize(
    source: Path, target: Path, mode: str, cores: int = 1, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    command = program(source, target, mode, **options)
    environment = {**os.environ, "OMP_NUM_THREADS": str(cores)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def checkpoint(directory: Path) -> dict[str, Tensor]:
    """All tensors, by way of the index alone."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    shards = {file: load_file(directory / file) for file in set(index.values())}
    assert {name for shard in shards.values() for name in shard} == set(index)
    return {name: shards[file][name] for name, file in index.items()}


def bits(tensor: Tensor) -> list[int]:
    return tensor.flatten().view(torch.uint8).tolist()


@pytest.mark.parametrize(("model_type", "dtype", "mode"), CASES)
def test_layer_by_layer_gives_the_bits_that_the_whole_model_gives(
    tmp_path: Path, model_type: str, dtype: torch.dtype, mode: str
) -> None:
    source = tiny_checkpoint.write(tmp_path / "source", model_type, dtype)
    assert quantize(source, tmp_path / "fp8", mode).returncode == 0
    made = checkpoint(tmp_path / "fp8")
    working = torch.float32 if dtype == torch.float16 else dtype
    original = tiny_checkpoint.tensors(model_type, dtype)
    reference = WholeModel({n: t.to(working) for n, t in original.items()}, keeps_the_bug=mode == "autofp8")
    rows = token_rows(source / "tokenizer.json", tmp_path / "calibration.txt", ROWS, ROW_TOKENS, "rows")
    torch.set_num_threads(1)
    with torch.inference_mode():
        for row in rows:
            reference.observe(row)

    for name, (codes, scale) in reference.weights.items():
        assert bits(made.pop(name)) == bits(codes), name
        assert bits(made.pop(f"{name}_scale")) == bits(scale), name
    for name, scale in reference.scales.items():
        assert bits(made.pop(f"{name}.input_scale")) == bits(scale), name
    for name, tensor in made.items():
        assert tensor.dtype == dtype, name
        assert bits(tensor) == bits(original[name]), name
    assert set(made) == {name for name in original if not name.endswith("_proj.weight")}


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama"])
def test_codes_and_scales_are_those_that_autofp8_itself_made(model_type: str, tmp_path: Path) -> None:
    """Input scales may differ in a sum's last bit on another processor; there 1 % is allowed, on average 0.1 %."""
    golden = json.loads(Path(__file__).with_name("autofp8.json").read_text())[model_type]
    source = tiny_checkpoint.write(tmp_path / "source", model_type, torch.bfloat16)
    assert quantize(source, tmp_path / "fp8", "autofp8").returncode == 0
    made = checkpoint(tmp_path / "fp8")
    scales = {name: tensor.item() for name, tensor in made.items() if name.endswith("_scale")}
    codes = {name: tensor for name, tensor in made.items() if tensor.dtype == torch.float8_e4m3fn}
    assert {name: sha256(bytes(bits(tensor))).hexdigest() for name, tensor in codes.items()} == golden[
        "codes"
    ]
    weights, inputs = (
        [name for name in golden["scales"] if name.endswith(end)] for end in ("weight_scale", "input_scale")
    )
    assert scales.keys() == {*weights, *inputs}
    assert [scales[name] for name in weights] == [golden["scales"][name] for name in weights]
    apart = [abs(scales[name] / golden["scales"][name] - 1) for name in inputs]
    assert max(apart) <= 0.01
    assert sum(apart) / len(apart) <= 0.001


@pytest.fixture(scope="module")
def both_modes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modes")
    source = tiny_checkpoint.write(folder / "source", "qwen2", torch.bfloat16)
    for mode in ("autofp8", "corrected"):
        assert quantize(source, folder / mode, mode).returncode == 0
    return folder


def test_the_layout_is_autofp8s(both_modes: Path) -> None:
    made = checkpoint(both_modes / "corrected")
    prefix = "model.layers.1.self_attn.k_proj"
    weight, weight_scale, input_scale = (
        made[f"{prefix}.{n}"] for n in ("weight", "weight_scale", "input_scale")
    )
    assert (weight.dtype, list(weight.shape)) == (torch.float8_e4m3fn, [128, 256])
    assert (weight_scale.dtype, weight_scale.dim()) == (torch.float32, 0)
    assert (input_scale.dtype, input_scale.dim()) == (torch.float32, 0)
    config = json.loads((both_modes / "corrected" / "config.json").read_text())
    assert config.pop("quantization_config") == {
        "quant_method": "fp8",
        "activation_scheme": "static",
        "ignored_layers": ["lm_head"],
    }
    assert config.pop("reproquant") == {
        "activation_scales": "corrected",
        "fused_scales": "separate",
        "activation_scheme": "static",
    }
    assert config == tiny_checkpoint.config("qwen2")


def test_tokenizer_and_generation_settings_come_along_and_the_old_weights_do_not(both_modes: Path) -> None:
    names = {path.name for path in (both_modes / "corrected").iterdir()}
    shards = {f"model-0000{number}-of-00004.safetensors" for number in range(1, 5)}
    companions = {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors.index.json"}
    assert names == shards | companions


def test_the_modes_differ_in_input_scales_alone(both_modes: Path) -> None:
    old, new = (checkpoint(both_modes / mode) for mode in ("autofp8", "corrected"))
    differing = {name for name in old if bits(old[name]) != bits(new[name])}
    assert differing
    assert all(name.endswith(".input_scale") for name in differing)


def test_shared_scales_are_one_for_what_vllm_merges_and_leave_the_rest_alone(
    both_modes: Path, tmp_path: Path
) -> None:
    assert quantize(both_modes / "source", tmp_path / "fp8", "corrected", fused="shared").returncode == 0
    shared, separate = checkpoint(tmp_path / "fp8"), checkpoint(both_modes / "corrected")
    prefix = "model.layers.0"
    for group in (("self_attn.q", "self_attn.k", "self_attn.v"), ("mlp.gate", "mlp.up")):
        names = [f"{prefix}.{name}_proj.weight_scale" for name in group]
        assert {shared[name].item() for name in names} == {max(separate[name].item() for name in names)}
    for name in (f"{prefix}.self_attn.o_proj.weight", f"{prefix}.self_attn.o_proj.weight_scale"):
        assert bits(shared[name]) == bits(separate[name])
    assert shared.keys() == separate.keys()


def test_a_dynamic_checkpoint_has_the_same_weights_and_no_input_scales(
    both_modes: Path, tmp_path: Path
) -> None:
    done = quantize(both_modes / "source", tmp_path / "fp8", "corrected", rows=10**6, scheme="dynamic")
    assert done.returncode == 0, done.stderr
    dynamic, static = checkpoint(tmp_path / "fp8"), checkpoint(both_modes / "corrected")
    assert dynamic.keys() == {name for name in static if not name.endswith("input_scale")}
    assert all(bits(tensor) == bits(static[name]) for name, tensor in dynamic.items())
    config = json.loads((tmp_path / "fp8" / "config.json").read_text())
    assert config["quantization_config"]["activation_scheme"] == "dynamic"


def test_a_second_run_on_more_cores_writes_the_same_bytes(tmp_path: Path) -> None:
    source = tiny_checkpoint.write(tmp_path / "source", "llama", torch.float32)
    digests = []
    for cores in (1, 4):
        target = tmp_path / f"on-{cores}"
        assert quantize(source, target, "corrected", cores=cores).returncode == 0
        digests.append({path.name: sha256_file(path) for path in target.iterdir()})
    assert digests[0] == digests[1]


def test_the_facts_say_what_was_written(both_modes: Path) -> None:
    facts = json.loads((both_modes / "corrected.facts.json").read_text())
    made = checkpoint(both_modes / "corrected")
    scales = [tensor.item() for name, tensor in made.items() if name.endswith("input_scale")]
    assert facts["bytes"] == sum(tensor.nbytes for tensor in made.values())
    assert (facts["input_scale"]["min"], facts["input_scale"]["max"]) == (min(scales), max(scales))
    assert (facts["layers"], facts["linears"], facts["working_dtype"]) == (2, 14, "bfloat16")


def test_progress_is_a_line_for_each_layer_that_says_how_long_the_rest_takes(tmp_path: Path) -> None:
    source = tiny_checkpoint.write(tmp_path / "source", "llama", torch.bfloat16)
    lines = quantize(source, tmp_path / "fp8", "corrected").stdout.splitlines()
    pattern = r"layer (\d) of 2: \d+\.\d s a layer, \d+ s left"
    assert [match[1] for line in lines[1:-1] if (match := re.fullmatch(pattern, line))] == ["1", "2"]
    assert lines[-2].endswith(" 0 s left")


def test_a_text_that_is_too_short_is_refused_in_three_lines_before_anything_is_written(
    tmp_path: Path,
) -> None:
    source = tiny_checkpoint.write(tmp_path / "source", "llama", torch.bfloat16)
    done = quantize(source, tmp_path / "fp8", "corrected", rows=500)
    assert done.returncode == 2
    assert [line.split(":")[0].strip() for line in done.stderr.splitlines()] == ["error", "why", "do"]
    assert "rows of 128 tokens, and 500 are wanted" in done.stderr
    assert not (tmp_path / "fp8").exists()


def test_rows_are_whole_windows_of_the_text_whatever_truncation_the_tokenizer_carries(tmp_path: Path) -> None:
    source = tiny_checkpoint.write(tmp_path / "source", "llama", torch.bfloat16)
    text = tmp_path / "text.txt"
    text.write_text("abcdefgh" * 8, encoding="utf-8")
    rows = token_rows(source / "tokenizer.json", text, rows=2, row_tokens=32, key="rows")
    letters = sorted(tiny_checkpoint.alphabet())
    assert ["".join(letters[number] for number in row) for row in rows.tolist()] == ["abcdefgh" * 4] * 2
    with pytest.raises(CalibrationError, match="at most 2 rows"):
        token_rows(source / "tokenizer.json", text, rows=3, row_tokens=32, key="rows")
