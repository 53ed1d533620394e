"""The command line that the programs which write an FP8 checkpoint have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from reproquant.errors import ReproquantError
from reproquant.fp8.calibrate import Calibration, Form
from reproquant.fp8.scales import Scheme


def parser(about: str) -> argparse.ArgumentParser:
    """Options for source, target, calibration and facts."""
    options = argparse.ArgumentParser(description=about)
    options.add_argument("--source", type=Path, required=True, help="a Hugging Face checkpoint")
    options.add_argument("--target", type=Path, required=True, help="folder for the new checkpoint")
    options.add_argument("--calibration", type=Path, required=True, help="a UTF-8 text")
    options.add_argument("--form", choices=get_args(Form), required=True)
    options.add_argument("--rows", type=int, required=True)
    options.add_argument("--row-tokens", type=int, required=True)
    options.add_argument("--seed", type=int, help="draw the rows; without it they are the text's first")
    options.add_argument("--activation-scheme", choices=get_args(Scheme), required=True)
    options.add_argument("--facts", type=Path, required=True, help="JSON file for what was done")
    return options


def calibration_of(arguments: argparse.Namespace) -> Calibration:
    """The calibration that the options describe."""
    return Calibration(
        arguments.calibration, arguments.form, arguments.rows, arguments.row_tokens, arguments.seed
    )


def observed(arguments: argparse.Namespace) -> Tensor:
    """Token ids [rows, row_tokens] to observe: none if scales are dynamic."""
    if arguments.activation_scheme == "dynamic":
        return torch.empty((0, arguments.row_tokens), dtype=torch.int64)
    return calibration_of(arguments).token_rows(arguments.source)


def run(options: argparse.ArgumentParser, program: Callable[[argparse.Namespace], None]) -> None:
    """Run a program with the options of this process; a known failure is three lines and exit code 2."""
    try:
        program(options.parse_args())
    except ReproquantError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
