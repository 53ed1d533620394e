"""Whether the rounds of two runs show a difference, or no more than noise.

Rounds are few (five by default) and no normal distribution is known of them, so
the test is the exact rank-sum test (Wilcoxon, Biometrics Bulletin 1, 1945; Mann and
Whitney, Annals of Mathematical Statistics 18, 1947), two-sided, with midranks for
ties: if both runs were one, every choice of ``len(old)`` of all rounds would be as
likely as the one found, and the share of choices that lie at least as far out is p.
Five against five rounds give 0.8 % if none overlap and 1.6 % if one pair does;
three against three can't go below 10 %.

The test takes rounds as independent, and those of one run aren't quite: they share
starts of the server, and what else the machine did. So the medians must also lie
further apart than the rounds of either run. What differs between two runs and not
within one, such as the temperature of the room, no rounds can tell: repeat a run to
see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import NormalDist, median

LEVEL = 0.01
"""How often runs that don't differ may be told apart, for each figure."""

Place = tuple[int, int]
"""Launch and round."""


@dataclass(frozen=True)
class Sample:
    """A figure's rounds in one run; ``places`` says where each stood, and is empty where it isn't known."""

    rounds: tuple[float, ...]
    places: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """What two samples show.

    ``ratio`` is new over old. Where the rounds have the same places it is the median over the pairs,
    with the lowest and highest pair as ``low`` and ``high``; else that of the medians, without a range.
    ``spread`` is how far the rounds of a run lie apart, over the old median; the larger of both runs.
    """

    ratio: float
    low: float | None
    high: float | None
    p: float
    spread: float
    shown: bool
    why: str


def judge(old: Sample, new: Sample) -> Judgement:
    """Whether ``new`` differs from ``old``; figures are positive, and neither sample is empty."""
    ratio, low, high = _ratio(old, new)
    p = rank_sum_p(old.rounds, new.rounds)
    spread = max(max(one.rounds) - min(one.rounds) for one in (old, new)) / median(old.rounds)
    apart = abs(median(new.rounds) / median(old.rounds) - 1)
    clearest = 2 / comb(len(old.rounds) + len(new.rounds), len(old.rounds))
    if clearest > LEVEL:
        why = f"{len(old.rounds)} and {len(new.rounds)} rounds are too few: p can't go below {clearest:.2g}"
    elif p > LEVEL:
        why = f"they overlap: p = {p:.2g}"
    elif apart <= spread:
        why = f"p = {p:.2g}, but rounds of one run differ as much"
    else:
        why = f"p = {p:.2g}"
    return Judgement(ratio, low, high, p, spread, p <= LEVEL and apart > spread, why)


def rank_sum_p(old: Sequence[float], new: Sequence[float]) -> float:
    """The two-sided p of the exact rank-sum test, by counting all choices of ``len(old)`` of the rounds.

    Ranks count twice, so that a midrank is a whole number too.
    """
    together = sorted([*old, *new])
    ranks = {value: 2 * together.index(value) + together.count(value) + 1 for value in together}
    sums: list[dict[int, int]] = [{0: 1}, *({} for _ in old)]
    for value in together:
        for size in range(len(old), 0, -1):
            for total, ways in sums[size - 1].items():
                sums[size][total + ranks[value]] = sums[size].get(total + ranks[value], 0) + ways
    middle = len(old) * (len(together) + 1)
    distance = abs(sum(ranks[value] for value in old) - middle)
    extreme = sum(ways for total, ways in sums[-1].items() if abs(total - middle) >= distance)
    return extreme / comb(len(together), len(old))


def beyond_errors(difference: float, *errors: float) -> bool:
    """Whether two means with these standard errors differ, at the same ``LEVEL`` (normal approximation)."""
    return abs(difference) > NormalDist().inv_cdf(1 - LEVEL / 2) * sum(error**2 for error in errors) ** 0.5


def _ratio(old: Sample, new: Sample) -> tuple[float, float | None, float | None]:
    if not old.places or old.places != new.places:
        return median(new.rounds) / median(old.rounds), None, None
    pairs = [after / before for before, after in zip(old.rounds, new.rounds, strict=True)]
    return median(pairs), min(pairs), max(pairs)
