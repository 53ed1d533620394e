"""Quantize with the real AutoFP8; runs in an environment with torch and transformers 4."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from reproquant.fp8.calibrate import token_rows


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("autofp8", "source", "target", "calibration"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("rows", "row-tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.autofp8))
    from auto_fp8 import AutoFP8ForCausalLM, BaseQuantizeConfig

    torch.set_num_threads(1)
    tokenizer = arguments.source / "tokenizer.json"
    rows = token_rows(tokenizer, arguments.calibration, arguments.rows, arguments.row_tokens, "--rows")
    config = BaseQuantizeConfig("fp8", "static", ignore_patterns=["re:.*lm_head"])
    original = AutoModelForCausalLM.from_pretrained(arguments.source, dtype=torch.bfloat16)
    model = AutoFP8ForCausalLM(original, config)
    model.quantize(rows)
    tied = original.config.tie_word_embeddings
    state = model.model.state_dict()
    arguments.target.mkdir()
    kept = {
        name: tensor.contiguous() for name, tensor in state.items() if not (tied and name == "lm_head.weight")
    }
    save_file(kept, arguments.target / "model.safetensors")


if __name__ == "__main__":
    main()
