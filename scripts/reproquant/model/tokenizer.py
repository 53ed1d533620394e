"""Rebuild a Hugging Face tokenizer from the vocabulary that a GGUF file holds.

A byte-level BPE tokenizer is its tokens, its merges, and the rule that cuts a
text into words before merging. A GGUF holds the first two; of the rule it
gives only a name (``tokenizer.ggml.pre``), so the rules of the names in use
stand here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFReader, TokenType

from reproquant.errors import FormatError
from reproquant.files import write_json

# The word-cutting regex of Qwen2, as Qwen's tokenizer.json and llama.cpp's src/llama-vocab.cpp both give it.
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
WORD_RULES: dict[str, dict[str, Any]] = {
    "smollm": {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
        },
    },
    "qwen2": {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": QWEN2_WORDS}, "behavior": "Isolated", "invert": False},
                {**BYTE_LEVEL, "trim_offsets": False, "use_regex": False},
            ],
        },
    },
}
SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE vocabulary.

    ``words`` names the rule in WORD_RULES, ``control`` holds the ids of the
    special tokens, ``named`` those of bos, eos and so on.
    """

    words: str
    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    control: tuple[int, ...]
    named: dict[str, int]
    chat_template: str | None
    context_length: int

    @classmethod
    def read(cls, reader: GGUFReader, path: Path) -> Vocabulary:
        """Take the vocabulary out of an open GGUF.

        Tokens named ``[PADn]`` are dropped: llama.cpp's converter puts them at the
        end to fill a vocabulary up to the embedding's rows, and does so again.
        Raises FormatError if the GGUF's tokenizer isn't byte-level BPE with a
        known word rule, or if the dropped ids are not the last ones.
        """
        words = field(reader, "tokenizer.ggml.pre", path)
        if field(reader, "tokenizer.ggml.model", path) != "gpt2" or words not in WORD_RULES:
            raise FormatError(
                path,
                f"its tokenizer '{words}' can't be rebuilt: the rule that cuts a text into words is unknown",
                f"use a GGUF whose tokenizer.ggml.pre is one of: {', '.join(WORD_RULES)}",
            )
        tokens = [str(token) for token in field(reader, "tokenizer.ggml.tokens", path)]
        kept = [token for number, token in enumerate(tokens) if token != f"[PAD{number}]"]
        if tokens[: len(kept)] != kept:
            raise FormatError(
                path, "padding stands between its real tokens, so ids would move", "use another GGUF"
            )
        types = field(reader, "tokenizer.ggml.token_type", path)
        return cls(
            words=words,
            tokens=tuple(kept),
            merges=tuple(field(reader, "tokenizer.ggml.merges", path)),
            control=tuple(number for number in range(len(kept)) if types[number] == TokenType.CONTROL),
            named={
                name: reader.fields[key].contents()
                for name, word in SPECIAL_TOKENS.items()
                if (key := f"tokenizer.ggml.{word}_token_id") in reader.fields
            },
            chat_template=field(reader, "tokenizer.chat_template", path),
            context_length=field(
                reader, f"{field(reader, 'general.architecture', path)}.context_length", path
            ),
        )

    def write(self, directory: Path) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``."""
        write_json(directory / "tokenizer.json", self._tokenizer())
        write_json(directory / "tokenizer_config.json", self._config())

    def _tokenizer(self) -> dict[str, Any]:
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": number, **self._added(number)} for number in self.control],
            **WORD_RULES[self.words],
            "post_processor": BYTE_LEVEL,
            "decoder": BYTE_LEVEL,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": {token: number for number, token in enumerate(self.tokens)},
                "merges": list(self.merges),
            },
        }

    def _config(self) -> dict[str, Any]:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self.context_length,
            "add_bos_token": False,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "added_tokens_decoder": {str(number): self._added(number) for number in self.control},
            **{name: self.tokens[number] for name, number in self.named.items()},
            "chat_template": self.chat_template,
        }

    def _added(self, number: int) -> dict[str, Any]:
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return {"content": self.tokens[number], **flags}


def field(reader: GGUFReader, key: str, path: Path) -> Any:
    """A metadata value of a GGUF; raises FormatError if it lacks the key."""
    if key not in reader.fields:
        raise FormatError(
            path, f"its metadata has no '{key}'", "use a GGUF with a whole header and vocabulary"
        )
    return reader.fields[key].contents()
