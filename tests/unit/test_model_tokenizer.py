from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader

from model_fixture import CONTROL, write_qwen2_vocabulary
from reproquant.errors import FormatError
from reproquant.files import read_json
from reproquant.model.tokenizer import Vocabulary


def read(path: Path, tokens: list[str], words: str = "qwen2") -> Vocabulary:
    write_qwen2_vocabulary(path, tokens, words)
    return Vocabulary.read(GGUFReader(path), path)


def test_ids_merges_special_tokens_and_template_survive(tmp_path: Path) -> None:
    read(tmp_path / "v.gguf", [*CONTROL, "a", "b", "c", "ab", "abc"]).write(tmp_path)
    tokenizer = read_json(tmp_path / "tokenizer.json")
    config = read_json(tmp_path / "tokenizer_config.json")
    assert tokenizer["model"]["vocab"]["abc"] == 7
    assert tokenizer["model"]["merges"] == ["a b", "ab c"]
    assert [(token["id"], token["content"]) for token in tokenizer["added_tokens"]] == list(
        enumerate(CONTROL)
    )
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert config["chat_template"] == "{{ messages }}"
    assert config["model_max_length"] == 64


def test_the_converters_padding_is_dropped(tmp_path: Path) -> None:
    vocabulary = read(tmp_path / "v.gguf", [*CONTROL, "a", "[PAD4]", "[PAD5]"])
    assert vocabulary.tokens == (*CONTROL, "a")


def test_padding_between_real_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="ids would move"):
        read(tmp_path / "v.gguf", [*CONTROL, "[PAD3]", "a"])


def test_a_word_rule_that_is_not_known_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"smollm, qwen2"):
        read(tmp_path / "v.gguf", [*CONTROL, "a"], words="llama-bpe")
