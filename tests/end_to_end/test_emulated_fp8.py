"""The emulated subject in the real vLLM: what its server answers is W8A8 as the quality evaluator computes it."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import numpy
import pytest

from checkout import Checkout
from reproquant.engines.choice import for_subject
from reproquant.files import repository
from reproquant.fp8 import checkpoint
from reproquant.model import manifest
from reproquant.study import Study, Subject
from reproquant.toolchain import python_env

FIRST, END = 256, 510
"""Positions whose next token's log-probability is compared."""

EVALUATED = """
import json, sys
from pathlib import Path
import torch
from reproquant.quality import logits
from reproquant.quality.evaluate import forward
from reproquant.quality.weights import Weights

class Shaken(Weights):
    def embed(self, tokens):
        values = super().embed(tokens)
        return values * (1 + 1e-6 * torch.randn(values.shape, generator=torch.Generator().manual_seed(1)))

folder, base, first, end = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
tokens = logits.Base.open(base).tokens[:1]
with torch.inference_mode():
    for name, kind, activations in (("w8a8", Weights, "quantized"), ("shaken", Shaken, "quantized"), ("w8a16", Weights, "float")):
        (rows,) = forward(kind.load(folder, activations), tokens)
        scores = rows.double().log_softmax(-1)
        told = [scores[place - 256, tokens[0, place + 1]].item() for place in range(first, end)]
        print(json.dumps({name: told}))
print(json.dumps({"tokens": tokens[0, : end + 1].tolist()}))
"""


@pytest.fixture(scope="module")
def fp8(tiny: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of the tiny model's FP8 checkpoint with scales of their own for q, k, v, gate and up."""
    folder = tmp_path_factory.mktemp("separate")
    study = Study.load(tiny.results / "study.json")
    original = manifest.Manifest.load(tiny.results / "model/manifest.json")
    settings = study.fp8.model_copy(update={"fused_scales": "separate"})
    torch = python_env.ensure("fp8", folder / "log")
    made, unfinished, log = (folder / name for name in ("checkpoint", "unfinished", "log"))
    checkpoint.make(original, settings, torch, made, unfinished, log, print)
    manifest.write(folder / "checkpoint", folder / "manifest.json", original.name, original.source)
    return folder / "manifest.json"


@pytest.fixture(scope="module")
def evaluated(fp8: Path, tiny: Checkout) -> dict[str, Any]:
    """Log-probabilities of a text's tokens by the evaluator: W8A8, the same from inputs shaken by 1e-6, W8A16."""
    environment = python_env.ensure("fp8", fp8.with_name("log"))
    words = (fp8.with_name("checkpoint"), tiny.results / "quality/original/logits.bin", str(FIRST), str(END))
    done = subprocess.run(
        [environment.python, "-c", EVALUATED, *words],
        env={"PYTHONPATH": str(repository() / "scripts")},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {key: numpy.array(values) for line in lines for key, values in line.items()}


@pytest.fixture(scope="module")
def served(fp8: Path, evaluated: dict[str, Any], tiny: Checkout) -> Any:
    """The same by the emulated subject's server, in float32 so that little but the quantization rounds."""
    study = Study.load(tiny.results / "study.json")
    subject = Subject(
        name="emulated", engine="vllm", artifact="fp8", emulated=True, arguments=("--dtype", "float32")
    )
    log = fp8.with_name("server.log")
    engine = for_subject(study, subject, fp8, Path(), log)
    prompt = evaluated["tokens"].tolist()
    body = {"model": subject.name, "prompt": prompt, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    try:
        url = engine.launch(engine.plan(subject), log).url
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            told = json.load(answer)["choices"][0]["prompt_logprobs"]
    finally:
        engine.stop()
    assert "quantization=reproquant-fp8-emulated" in log.read_text()
    return numpy.array([told[place + 1][str(prompt[place + 1])]["logprob"] for place in range(FIRST, END)])


def test_the_server_answers_with_w8a8_as_closely_as_w8a8_answers_with_itself(
    served: Any, evaluated: dict[str, Any]
) -> None:
    """One input that is rounded to the next code changes others in every layer after it. So the evaluator
    itself, shaken by 1e-6, is the measure; that the check can fail is shown by W8A16, which is further away."""

    def from_w8a8(found: Any) -> float:
        return float(numpy.abs(found - evaluated["w8a8"]).mean())

    noise = from_w8a8(evaluated["shaken"])
    print(
        f"from W8A8: server {from_w8a8(served):.2e}, shaken {noise:.2e}, W8A16 {from_w8a8(evaluated['w8a16']):.2e}"
    )
    assert from_w8a8(served) < 1.5 * noise
    assert numpy.abs(served - evaluated["w8a16"]).mean() > 2 * noise
