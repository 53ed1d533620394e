"""Sentences of a report: words with numbers and quotes in them, which keep their sources."""

from __future__ import annotations

from reproquant.report.numbers import Number, Quote

Sentence = tuple[str | Number | Quote, ...]


def say(text: str, *parts: Number | Quote | Sentence) -> Sentence:
    """The sentence ``text`` with ``parts`` in the places of its ``{}``; names are put in beforehand."""
    words = text.split("{}")
    sentence: list[str | Number | Quote] = [words[0]]
    for part, after in zip(parts, words[1:], strict=True):
        sentence += part if isinstance(part, tuple) else (part,)
        sentence.append(after)
    return tuple(piece for piece in sentence if piece != "")


def at(concurrency: Number) -> Sentence:
    """How many requests a figure is for, as a part of a sentence."""
    return ("for one request",) if concurrency.value == 1 else say("at {} requests at once", concurrency)


def as_data(sentence: Sentence) -> list[object]:
    """A sentence as it stands in report.json: its words, and the ids of its numbers."""
    return [
        part.id if isinstance(part, Number) else {"text": part.text if isinstance(part, Quote) else part}
        for part in sentence
    ]
