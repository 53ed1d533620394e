"""The test behind every `faster` and `slower`: its p is the one in the tables, and noise isn't a difference."""

from __future__ import annotations

import random
from itertools import combinations
from math import comb

import pytest

from reproquant.report.noise import LEVEL, Sample, beyond_errors, judge, rank_sum_p

TWO_LAUNCHES = ((0, 0), (0, 1), (0, 2), (1, 3), (1, 4))


def sample(*rounds: float, places: tuple[tuple[int, int], ...] = ()) -> Sample:
    return Sample(rounds, places)


@pytest.mark.parametrize(
    "old, new, p",
    [
        ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10), 2 / 252),
        ((1, 2, 3, 4, 6), (5, 7, 8, 9, 10), 4 / 252),
        ((1, 2, 3), (4, 5, 6), 2 / 20),
        ((1, 2), (3, 4), 2 / 6),
        ((1, 1, 1), (1, 1, 1), 1.0),
    ],
)
def test_the_p_is_that_of_the_published_tables(old: tuple, new: tuple, p: float) -> None:
    assert rank_sum_p(old, new) == pytest.approx(p)
    assert rank_sum_p(new, old) == pytest.approx(p)


@pytest.mark.parametrize("seed", range(5))
def test_the_p_is_the_share_of_all_choices_that_lie_as_far_out(seed: int) -> None:
    """Counted one by one, with ties."""
    dice = random.Random(seed)
    old, new = [float(dice.randint(1, 6)) for _ in range(4)], [float(dice.randint(1, 6)) for _ in range(5)]
    together = old + new
    ranks = [(sum(a < b for a in together) + (together.count(b) + 1) / 2) for b in together]
    middle = 4 * 10 / 2
    far = abs(sum(ranks[:4]) - middle)
    extreme = sum(abs(sum(chosen) - middle) >= far - 1e-9 for chosen in combinations(ranks, 4))
    assert rank_sum_p(old, new) == pytest.approx(extreme / comb(9, 4))


def test_runs_of_one_distribution_are_told_apart_seldom_and_shifted_ones_nearly_always() -> None:
    """Of 3000 pairs the rank-sum test alone would show 24, one in 126."""
    dice = random.Random(1)
    same = [judge(sample(*draw(dice)), sample(*draw(dice))) for _ in range(3000)]
    assert 12 <= sum(one.p <= LEVEL for one in same) <= 3000 * LEVEL * 1.5
    assert sum(one.shown for one in same) <= 3000 * LEVEL / 3
    shifted = [judge(sample(*draw(dice)), sample(*draw(dice, 112))).shown for _ in range(300)]
    assert sum(shifted) >= 295


def draw(dice: random.Random, middle: float = 100) -> list[float]:
    return [dice.gauss(middle, 2) for _ in range(5)]


def test_a_shift_beyond_the_spread_is_shown() -> None:
    found = judge(sample(100, 101, 99, 100.5, 99.5), sample(110, 111, 109, 110.5, 109.5))
    assert found.shown and found.ratio == pytest.approx(1.1) and found.p == pytest.approx(2 / 252)


def test_overlapping_rounds_show_nothing() -> None:
    found = judge(sample(100, 104, 96, 102, 98), sample(101, 105, 97, 103, 99))
    assert not found.shown and "overlap" in found.why


def test_three_rounds_are_too_few_for_any_difference() -> None:
    found = judge(sample(1, 2, 3), sample(100, 200, 300))
    assert not found.shown and "too few" in found.why


def test_a_shift_no_larger_than_the_spread_of_either_run_shows_nothing() -> None:
    unsteady = sample(100, 104, 108, 112, 116)
    for old, new in ((unsteady, sample(117, 118, 119, 120, 121)), (sample(80, 82, 84, 86, 88), unsteady)):
        found = judge(old, new)
        assert found.p <= LEVEL and found.shown is (found.ratio > 1.2)
    assert "rounds of one run differ as much" in judge(unsteady, sample(117, 118, 119, 120, 121)).why


def test_rounds_with_the_same_places_are_paired_and_others_arent() -> None:
    old = sample(100, 110, 120, 130, 140, places=TWO_LAUNCHES)
    new = sample(105, 115.5, 126, 136.5, 147, places=TWO_LAUNCHES)
    paired = judge(old, new)
    assert (paired.ratio, paired.low, paired.high) == pytest.approx((1.05, 1.05, 1.05))
    other = judge(old, Sample(new.rounds, ((0, 0), (0, 1), (1, 2), (1, 3), (1, 4))))
    assert other.ratio == pytest.approx(1.05) and other.low is None


def test_means_within_their_errors_are_not_told_apart() -> None:
    assert not beyond_errors(2.5, 1.0)
    assert beyond_errors(2.6, 1.0)
    assert not beyond_errors(2.6, 1.0, 1.0)
