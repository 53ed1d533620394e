"""The exact words with which engines refuse a machine, and words that only look like it."""

from __future__ import annotations

import pytest

from reproquant.engines.refusals import classify, last_words

E1 = (
    "ValueError: The quantization method fp8 is not supported for the current GPU. "
    "Minimum capability: 80. Current capability: 70."
)
E2 = (
    "RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min capability: 80. ', "
    "'Current capability: 70.')"
)
E2_PLAIN = (
    "RuntimeError: Quantization scheme is not supported for the current GPU. "
    "Min capability: 75. Current capability: 70."
)
ARTICLE = "FP8 is not supported on this GPU type (sm_70)"
CPU_FP8 = "RuntimeError: _C::static_scaled_fp8_quant() expected at most 0 argument(s) but received 4"
NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
FORCED = (
    "RuntimeError: torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9"
)


@pytest.mark.parametrize("words", [E1, E2, E2_PLAIN, ARTICLE, CPU_FP8, NO_KERNEL, FORCED])
def test_every_known_refusal_is_recognised_and_its_line_is_quoted(words: str) -> None:
    log = (
        f"INFO loading\n(EngineCore pid=41) ERROR {words}\nRuntimeError: Engine core initialization failed.\n"
    )
    refusal = classify("vllm", log)
    assert refusal is not None
    assert refusal.evidence == f"(EngineCore pid=41) ERROR {words}"
    assert refusal.meaning.endswith(".")


@pytest.mark.parametrize(
    "words",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB.",
        "ValueError: No available memory for the cache blocks.",
        "OSError: [Errno 98] Address already in use",
        "WARNING Compute Capability < 8.0 is not supported by the V1 Engine. Falling back to V0.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ],
)
def test_other_failures_are_not_taken_for_refusals(words: str) -> None:
    assert classify("vllm", words) is None


def test_words_of_one_engine_are_not_searched_in_anothers_log() -> None:
    assert classify("llama_cpp", E1) is None
    assert classify("llama_cpp", NO_KERNEL) is not None


def test_a_failures_last_words_are_the_lines_that_name_an_error() -> None:
    log = "loading\nValueError: the cause\n" + "  at somewhere\n" * 30 + "bye\n"
    assert last_words(log) == "ValueError: the cause"
    assert last_words("one\ntwo\n") == "one\ntwo"
