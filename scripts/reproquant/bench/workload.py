"""The prompts: exact token-id windows of one text, each with its own first id."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from reproquant.errors import StudyError
from reproquant.files import digest_of


@dataclass(frozen=True)
class Prompt:
    """Token ids to send; ``ids[0]`` is the nonce that no other prompt of the measurement starts with."""

    ids: tuple[int, ...]

    @property
    def nonce_id(self) -> int:
        return self.ids[0]


class Prompts:
    """Gives out prompts of exactly ``length`` ids, cut from the ids of one text.

    The nonces are the text's own distinct ids in a seeded order: ordinary
    tokens, none special. As a cache is looked up from a prompt's first token
    on, a different one makes every prompt a miss. Measured prompts are the
    text's beginning, the same work every time; warm-up prompts are windows from
    anywhere in it. The order of the calls decides which nonce comes next,
    so equal seeds and equal protocols give equal prompts.

    Raises StudyError if the text has fewer ids than a prompt, or fewer
    distinct ones than ``count`` prompts need.
    """

    def __init__(self, ids: Sequence[int], length: int, count: int, seed: int) -> None:
        distinct = sorted(set(ids))
        if len(ids) < length:
            raise StudyError(
                "benchmark.prompt",
                f"the text is {len(ids)} tokens long and a prompt has {length}",
                "give a longer text",
            )
        if len(distinct) < count:
            raise StudyError(
                "benchmark.prompt",
                f"{count} requests need as many different first tokens, and the text has {len(distinct)}",
                "give a longer text, or lower rounds or concurrencies",
            )
        self._ids = tuple(ids)
        self._distinct = distinct
        self._repeated = -1
        self._length = length
        self._random = random.Random(seed)
        self._nonces = iter(self._random.sample(distinct, len(distinct)))

    def measured(self) -> Prompt:
        """The next prompt of a round: a fresh nonce before the text's beginning."""
        return self._cut(0)

    def warmup(self) -> Prompt:
        """The next warm-up prompt: a fresh nonce before a window from anywhere in the text."""
        return self._cut(self._random.randint(0, len(self._ids) - self._length))

    def repeated(self) -> Prompt:
        """The next prompt of a sustained load: no two alike within their first two tokens.

        There may be far more of them than distinct first tokens. They begin again
        when every pair of these was sent.
        """
        self._repeated += 1
        second, first = divmod(self._repeated, len(self._distinct))
        pair = self._distinct[first], self._distinct[second % len(self._distinct)]
        return Prompt((*pair, *self._ids)[: self._length])

    def _cut(self, start: int) -> Prompt:
        return Prompt((next(self._nonces), *self._ids[start : start + self._length - 1]))


def digest_of_ids(ids: Sequence[int]) -> str:
    """Hex sha256 of the canonical JSON list of ids; equal for servers that tokenize alike."""
    return digest_of(list(ids))
