"""Quantize with llm-compressor's scheme FP8; runs in the environment llm-compressor."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForCausalLM

from reproquant.fp8.calibrate import token_rows


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("source", "target", "calibration"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("rows", "row-tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    tokenizer = arguments.source / "tokenizer.json"
    rows = token_rows(tokenizer, arguments.calibration, arguments.rows, arguments.row_tokens, "--rows")
    model = AutoModelForCausalLM.from_pretrained(arguments.source, dtype=torch.bfloat16)
    oneshot(
        model=model,
        dataset=Dataset.from_dict(
            {"input_ids": rows.tolist(), "attention_mask": torch.ones_like(rows).tolist()}
        ),
        recipe=QuantizationModifier(targets="Linear", scheme="FP8", ignore=["lm_head"]),
        max_seq_length=arguments.row_tokens,
        num_calibration_samples=arguments.rows,
        shuffle_calibration_samples=False,
    )
    model.save_pretrained(arguments.target, save_compressed=True)


if __name__ == "__main__":
    main()
