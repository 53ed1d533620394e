from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import tiny_checkpoint
import torch
from test_quantize import TEXT, quantize
from tokenizers import Tokenizer, processors
from torch import Tensor
from whole_model import WholeModel

from reproquant.errors import FormatError
from reproquant.fp8.calibrate import CalibrationError
from reproquant.fp8.source import INPUT_GROUPS
from reproquant.quality import logits
from reproquant.quality.evaluate import chunks_of
from reproquant.quality.weights import Merged, Weights

CHUNKS = 2


def evaluate(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the program as the workflow does."""
    program = [sys.executable, "-m", "reproquant.quality.evaluate", *map(str, words)]
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint, its base file, and its FP8 checkpoint."""
    folder = tmp_path_factory.mktemp("quality")
    tiny_checkpoint.write(folder / "source", "qwen2", torch.bfloat16)
    assert quantize(folder / "source", folder / "fp8", "corrected").returncode == 0
    (folder / "text.txt").write_text(TEXT[::-1] * 2, encoding="utf-8")
    words = ("--text", folder / "text.txt", "--chunks", CHUNKS, "--base", folder / "base")
    done = evaluate("original", "--weights", folder / "source", *words, "--facts", folder / "original.json")
    assert done.returncode == 0, done.stderr
    return folder


def against(folder: Path, weights: str, activations: str) -> dict:
    facts = folder / "facts.json"
    words = ("--activations", activations, "--base", folder / "base", "--facts", facts)
    done = evaluate("against", "--weights", folder / weights, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(facts.read_text())


def test_perplexity_is_that_of_the_whole_model_at_positions_256_to_510(evaluated: Path) -> None:
    """The model is written a second time in ``whole_model``, here with float32 weights and no quantization."""

    class Plain(WholeModel):
        def linear(self, name: str, values: Tensor) -> Tensor:
            return torch.nn.functional.linear(
                values, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
            )

    tensors = {n: t.float() for n, t in tiny_checkpoint.tensors("qwen2", torch.bfloat16).items()}
    model = Plain(tensors, keeps_the_bug=False)
    losses = []
    for chunk in logits.Base.open(evaluated / "base").tokens:
        hidden = model.forward(chunk)
        scores = (model.norm("model.norm", hidden) @ tensors["lm_head.weight"].T)[0]
        losses += [-scores[p].log_softmax(-1)[chunk[p + 1]].item() for p in range(256, 511)]
    facts = json.loads((evaluated / "original.json").read_text())
    assert facts["scored_tokens"] == len(losses) == 255 * CHUNKS
    assert facts["perplexity"] == pytest.approx(numpy.exp(numpy.mean(losses)), rel=1e-5)


def test_a_checkpoint_does_not_diverge_from_itself(evaluated: Path) -> None:
    facts = against(evaluated, "source", "float")
    assert facts["perplexity"] == json.loads((evaluated / "original.json").read_text())["perplexity"]
    assert abs(facts["divergence"]["kld"]) < 1e-5
    assert facts["divergence"]["same_top_percent"] > 99


def test_quantized_activations_add_to_the_divergence_of_quantized_weights(evaluated: Path) -> None:
    weights_alone, both = (against(evaluated, "fp8", how)["divergence"] for how in ("float", "quantized"))
    assert 1e-4 < weights_alone["kld"] < both["kld"]


def plain_row(row: Tensor) -> list[int]:
    """perplexity.cpp's ``log_softmax`` with a file, one token after the other."""
    largest = max(row.tolist())
    smallest = max(min(row.tolist()), largest - 16)
    total = numpy.float32(numpy.log(sum(numpy.exp(numpy.float32(x - largest)) for x in row.tolist())))
    scale = numpy.float32((largest - smallest) / 65535)
    least = numpy.float32(smallest - largest - total)
    codes = [round((x - smallest) / scale) if x > smallest else 0 for x in row.tolist()]
    head = numpy.array([scale, least], "<f4").view("<u2").tolist()
    return [*head, *codes, *[0] * (len(codes) % 2)]


@pytest.mark.parametrize("vocabulary", [6, 7])
def test_the_base_file_has_llama_perplexitys_layout(vocabulary: int, tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(vocabulary, (1, 512), generator=random)
    rows = torch.randn(255, vocabulary, generator=random) * 6
    logits.write(tmp_path / "base", tokens, vocabulary, [rows])
    content = (tmp_path / "base").read_bytes()
    assert content[:8] == b"_logits_"
    assert numpy.frombuffer(content[8:20], "<i4").tolist() == [512, vocabulary, 1]
    assert numpy.frombuffer(content[20 : 20 + 2048], "<i4").tolist() == tokens[0].tolist()
    words = numpy.frombuffer(content[20 + 2048 :], "<u2").reshape(255, -1)
    assert words.shape[1] == 2 * ((vocabulary + 1) // 2) + 4
    for found, row in zip(words, rows, strict=True):
        wanted = plain_row(row)
        assert abs(found[4:].astype(int) - wanted[4:]).max() <= 1  # float32 against float64 at a half
        numpy.testing.assert_allclose(
            found[:4].copy().view("<f4"), numpy.array(wanted[:4], "<u2").view("<f4"), rtol=1e-5
        )


def test_what_is_read_back_is_the_log_probability_within_half_a_code(tmp_path: Path) -> None:
    rows = torch.randn(255, 50, generator=torch.Generator().manual_seed(2))
    logits.write(tmp_path / "base", torch.zeros(1, 512, dtype=torch.int64), 50, [rows])
    found = logits.Base.open(tmp_path / "base").next()
    half = (rows.amax(-1) - rows.amin(-1)) / 65535 / 2
    assert ((found - rows.log_softmax(-1)).abs() <= half[:, None] * 1.05 + 1e-6).all()


def test_divergence_is_kullback_and_leiblers() -> None:
    random = torch.Generator().manual_seed(3)
    own, base = (torch.randn(255, 40, generator=random) for _ in range(2))
    chunk = torch.randint(40, (512,), generator=random)
    scores = logits.score(own, base.log_softmax(-1), chunk)
    p, q = base.double().softmax(-1), own.double().softmax(-1)
    torch.testing.assert_close(scores.kld, (p * (p / q).log()).sum(-1), rtol=1e-4, atol=1e-6)
    assert scores.same_top.tolist() == (own.argmax(-1) == base.argmax(-1)).tolist()
    assert scores.nll[0].item() == pytest.approx(-q[0, chunk[257]].log().item(), rel=1e-5)
    assert scores.nll[-1].item() == pytest.approx(-q[-1, chunk[511]].log().item(), rel=1e-5)


def test_another_file_than_a_base_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(b"GGUF" * 100)
    with pytest.raises(FormatError, match="no log-probabilities"):
        logits.Base.open(tmp_path / "base")


def test_a_merged_linear_multiplies_codes_and_scales_the_sum() -> None:
    codes = [torch.tensor([[448.0, -2.0]]), torch.tensor([[16.0, 1.0]])]
    parts = [part.to(torch.float8_e4m3fn) for part in codes]
    merged = Merged.of(parts, [torch.tensor(0.5), torch.tensor(0.125)], torch.tensor(0.25))
    assert [part.tolist() for part in merged.codes] == [[[448.0, -2.0]], [[4.0, 0.25]]]
    # inputs 1000 and 1 at scale 0.25: 4000 is clamped to 448, and 4 stays
    first, second = merged(torch.tensor([[1000.0, 1.0]]), [None, torch.tensor([3.0])])
    assert first.item() == (448 * 448 - 2 * 4) * 0.25 * 0.5
    assert second.item() == (4 * 448 + 0.25 * 4) * 0.25 * 0.5 + 3


def test_a_shared_scale_makes_the_merge_change_nothing(evaluated: Path, tmp_path: Path) -> None:
    assert quantize(evaluated / "source", tmp_path / "fp8", "corrected", fused="shared").returncode == 0
    weights = Weights.load(tmp_path / "fp8", "quantized")
    for group in INPUT_GROUPS:
        merged = weights._merged("model.layers.1.", group)
        for name, codes in zip(group, merged.codes, strict=True):
            assert torch.equal(codes, weights.tensor(f"model.layers.1.{name}.weight").float()), name


def test_a_dynamic_input_has_a_scale_for_each_token() -> None:
    merged = Merged.of([torch.eye(2).to(torch.float8_e4m3fn)], [torch.tensor(1.0)], None)
    (outputs,) = merged(torch.tensor([[448.0, 1.0], [0.001, 0.0]]), [None])
    torch.testing.assert_close(outputs, torch.tensor([[448.0, 1.0], [0.001, 0.0]]))


def test_chunks_begin_with_the_bos_token_if_the_tokenizer_adds_one(evaluated: Path, tmp_path: Path) -> None:
    path = evaluated / "source" / "tokenizer.json"
    plain = chunks_of(path, evaluated / "text.txt", CHUNKS)
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = processors.TemplateProcessing(single="a $A", special_tokens=[("a", 65)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with_bos = chunks_of(tmp_path / "tokenizer.json", evaluated / "text.txt", CHUNKS)
    assert with_bos[:, 0].tolist() == [65] * CHUNKS
    assert torch.equal(with_bos[:, 1:], plain[:, 1:])


def test_a_text_without_enough_chunks_is_refused_by_the_studys_key(evaluated: Path) -> None:
    with pytest.raises(CalibrationError, match=r"quality\.chunks"):
        chunks_of(evaluated / "source" / "tokenizer.json", evaluated / "text.txt", 1000)
