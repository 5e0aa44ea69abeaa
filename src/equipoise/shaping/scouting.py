"""Scouting: a few completions of many problems first, and the rest for those that showed the most to learn. Axes: P problems, G completions.

A step poses `scouts` problems with `first` completions each, goes on with `sampling.prompts` of them up to `sampling.samples`, and
learns from these alone, their first completions included:

    rollouts of a step = scouts · first + prompts · (samples − first)

One round of successive halving (https://arxiv.org/abs/1502.07943) over the problems of a step. Knapsack RL
(https://arxiv.org/abs/2509.25849) shares out a budget of rollouts too, by a knapsack problem, a number of its own to every problem. The
rule and its numbers here are ours.

**The bias.** First completions of a chosen problem were chosen by their outcome: where one in a hundred is right, the group is there
because one of the first four was. So the group's mean is no unbiased baseline: of hard problems that a right completion brought in it
lies above the policy's own success, of easy ones that a wrong completion brought in below, by `first / samples` of what the first
completions are off. And a right completion of a hard problem is learnt from whenever it is among the first, a wrong one mostly
where a right one stands beside it. What comes after the first completions is drawn freely.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.errors import UsageError
from equipoise.shaping.inputs import verdicts

# What a problem's first completions showed, in the order in which problems are chosen. With none right it may be solved yet; with all
# right there is little to learn; with no verdict nothing is known of it.
_MIXED, _ALL_WRONG, _ALL_RIGHT, _UNJUDGED = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scouting:
    scouts: int = 112  # problems that a step poses
    first: int = 4  # completions that each of them gets at first

    def __post_init__(self) -> None:
        for name in ("scouts", "first"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} of scouting is {value}: use a whole number, 1 or more")

    def choose(self, n: int, *, correct_PG: np.ndarray | None, keep_PG: np.ndarray, seed: int) -> np.ndarray:
        """Places of the n problems that get the rest, in the order in which they were posed.

        Problems with right and wrong first completions before those with none right, before those with all right; of the mixed ones
        those with the smallest share of right ones first. Ties fall by a draw from the seed, never by the order of problems.
        """
        correct_PG = verdicts(keep_PG, correct_PG=correct_PG)
        if not 0 <= n <= len(correct_PG):
            raise UsageError(f"{n} problems were to be chosen of {len(correct_PG)}: scout as many at least")
        checked_P, right_P = (~np.isnan(correct_PG)).sum(axis=1), np.nansum(correct_PG, axis=1)
        is_mixed_P = (right_P > 0) & (right_P < checked_P)
        tier_P = np.select(
            [checked_P == 0, is_mixed_P, right_P == 0], [_UNJUDGED, _MIXED, _ALL_WRONG], default=_ALL_RIGHT
        )
        rate_P = np.where(is_mixed_P, right_P / np.maximum(checked_P, 1), 0.0)
        draw_P = np.random.default_rng(seed).permutation(len(correct_PG))
        return np.sort(np.lexsort((draw_P, rate_P, tier_P))[:n])
