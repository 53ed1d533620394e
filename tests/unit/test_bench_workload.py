"""Prompts of exact length, none of which a cache can know."""

from __future__ import annotations

import pytest

from reproquant.bench.workload import Prompts, digest_of_ids
from reproquant.errors import StudyError

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def test_every_prompt_has_the_exact_length_and_another_first_id() -> None:
    prompts = Prompts(IDS, length=5, count=8, seed=1)
    cut = [prompts.warmup() for _ in range(4)] + [prompts.measured() for _ in range(4)]
    assert {len(prompt.ids) for prompt in cut} == {5}
    assert len({prompt.nonce_id for prompt in cut}) == 8
    assert {prompt.nonce_id for prompt in cut} == set(IDS)


def test_measured_prompts_differ_in_their_first_id_only() -> None:
    prompts = Prompts(IDS, length=5, count=8, seed=1)
    assert {prompts.measured().ids[1:] for _ in range(8)} == {tuple(IDS[:4])}


def test_an_equal_seed_gives_equal_prompts_and_another_seed_others() -> None:
    def drawn(seed: int) -> list[tuple[int, ...]]:
        prompts = Prompts(IDS, length=5, count=8, seed=seed)
        return [prompts.warmup().ids for _ in range(8)]

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_text_shorter_than_a_prompt_is_refused() -> None:
    with pytest.raises(StudyError, match="12 tokens long and a prompt has 13"):
        Prompts(IDS, length=13, count=1, seed=1)


def test_a_text_with_too_few_different_tokens_for_all_requests_is_refused() -> None:
    with pytest.raises(StudyError, match="9 requests need"):
        Prompts(IDS, length=5, count=9, seed=1)


def test_the_digest_of_ids_is_that_of_their_json_list() -> None:
    assert digest_of_ids((1, 2)) == digest_of_ids([1, 2]) != digest_of_ids([2, 1])


def test_a_sustained_load_goes_on_when_every_pair_of_first_tokens_was_sent() -> None:
    prompts = Prompts([3, 1, 3, 1], length=4, count=2, seed=1)
    sent = [prompts.repeated().ids for _ in range(5)]
    assert len(set(sent)) == 4 and sent[4] == sent[0]
