"""A GGUF's header without its vocabulary says what gguf's own reader says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from reproquant.errors import FormatError
from reproquant.gguf import header
from reproquant.gguf.header import Header
from reproquant.gguf.inspect import inspect

TOKENS = [f"Ġtoken{'x' * (number % 40)}{number}" for number in range(3000)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A GGUF with long and short arrays of strings and numbers, scalars behind them, and two tensors."""
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "qwen2")
    writer.add_block_count(2)
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * len(TOKENS))
    writer.add_token_scores([0.5] * len(TOKENS))
    writer.add_array("short", [7, 8, 9])
    writer.add_file_type(1)
    writer.add_name("a name")
    writer.add_tensor("token_embd.weight", np.ones((64, 32), dtype=np.float16))
    writer.add_tensor("output_norm.weight", np.arange(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_tensors_and_all_fields_but_long_arrays_are_those_of_ggufs_own_reader(file: Path) -> None:
    own, whole = Header(file), GGUFReader(file)
    for ours, theirs in zip(own.tensors, whole.tensors, strict=True):
        assert (ours.name, ours.tensor_type, ours.n_bytes) == (
            theirs.name,
            theirs.tensor_type,
            theirs.n_bytes,
        )
        assert np.array_equal(ours.data, theirs.data)
    assert own.fields.keys() == whole.fields.keys()
    long = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"}
    for name in own.fields.keys() - long:
        assert own.fields[name].contents() == whole.fields[name].contents(), name
    assert own.fields["short"].contents() == [7, 8, 9]
    assert len(whole.fields["tokenizer.ggml.tokens"].contents()) > header.LONG


def test_a_file_that_ends_within_its_vocabulary_is_refused_in_words(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: content.index(TOKENS[2000].encode())])
    with pytest.raises(FormatError, match="no whole GGUF file"):
        inspect(file, "f16")
