"""The evaluator and llama-perplexity on the tiny study's model, unquantized."""

from __future__ import annotations

import re
import subprocess
import sys

from checkout import Checkout
from reproquant.files import repository


def test_the_evaluator_gives_llama_perplexitys_perplexity_on_a_float32_model(tiny: Checkout) -> None:
    program = [sys.executable, repository() / "benchmarks/perplexity.py", tiny.results]
    done = subprocess.run(program, env=tiny.environment, capture_output=True, text=True, check=True)
    own, other = (float(number) for number in re.findall(r"(?:evaluator|perplexity) +([\d.]+)", done.stdout))
    assert own > 1000
    assert abs(other / own - 1) <= 1e-4
