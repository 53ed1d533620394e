"""A seeded checkpoint in GPTQ's layout (4 bits, groups of 128), with the tiny study's shape and tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

GROUP = 128
QUANTIZATION = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
ZERO = 0x77777777
"""Eight zero points of 8, each stored less one."""


def write(source: Path, target: Path) -> Path:
    """Fill ``target`` with a random GPTQ checkpoint whose config and tokenizer are those of ``source``."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path.resolve(), target / path.name)
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": QUANTIZATION}))
    random = np.random.default_rng(5)
    made: dict[str, NDArray[np.generic]] = {}
    for name, shape in _shapes(source).items():
        if name.endswith("_proj.weight"):
            made |= _packed(name.removesuffix("weight"), shape, random)
        else:
            centre = 1.0 if "norm" in name else 0.0
            made[name] = random.normal(centre, 0.02, shape).astype(np.float16)
    save_file(made, target / "model.safetensors")
    return target


def _shapes(source: Path) -> dict[str, tuple[int, ...]]:
    found = {}
    for path in source.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
    return found


def _packed(
    prefix: str, shape: tuple[int, ...], random: np.random.Generator
) -> dict[str, NDArray[np.generic]]:
    """Eight inputs a word, the first lowest; w = scale * (code - 8)."""
    outputs, inputs = shape
    return {
        f"{prefix}qweight": random.integers(-(2**31), 2**31, (inputs // 8, outputs), dtype=np.int32),
        f"{prefix}qzeros": np.full((inputs // GROUP, outputs // 8), ZERO, dtype=np.int32),
        f"{prefix}scales": random.uniform(0.003, 0.006, (inputs // GROUP, outputs)).astype(np.float16),
        f"{prefix}g_idx": (np.arange(inputs) // GROUP).astype(np.int32),
    }
