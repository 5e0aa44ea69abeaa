"""Outcome-based exploration: terms that favour rare final answers (https://arxiv.org/abs/2509.06941).

Axes: P groups, G completions each. Every function returns `bonus_PG` and adds it to nothing: it stays apart from the base
advantage, so that `shaping.tokens` can keep it off the tokens of the final answer, where it would reward writing another
number under the same reasoning. That guard and `unless_all_right` are the paper's two.

A completion without a readable answer, and padding, get exactly 0: it has no count, collides with nobody and is no part of a
mean. An answer that cannot be read is not a rare answer; that it also costs nothing is for the reward to mend.
"""

from __future__ import annotations

import numpy as np

from equipoise.errors import UsageError, same_shape
from equipoise.shaping.inputs import verdicts


def rarity(visits_PG: np.ndarray) -> np.ndarray:
    """b = min(1, √(1 / N)), and 1 where N is 0; nan where there is no answer.

    `visits_PG` is N before this step (`OutcomeCounter.visit`): a first visit gives 1, and so does the step after a single one.
    """
    return np.asarray(1 / np.sqrt(np.maximum(visits_PG, 1)))


def ucb_naive(
    visits_PG: np.ndarray,
    keep_PG: np.ndarray,
    correct_PG: np.ndarray | None = None,
    *,
    weight: float,
    unless_all_right: bool = True,
) -> np.ndarray:
    """weight · b_i. Never negative, so all that was sampled is pushed up; reported to widen training answers, not test ones."""
    acts_PG = _acts(~np.isnan(visits_PG), keep_PG, correct_PG, unless_all_right)
    return np.where(acts_PG, weight * rarity(visits_PG), 0.0)


def ucb_mean(
    visits_PG: np.ndarray,
    keep_PG: np.ndarray,
    correct_PG: np.ndarray | None = None,
    *,
    weight: float,
    unless_all_right: bool = True,
) -> np.ndarray:
    """weight · (b_i − mean_{j≠i} b_j) over the group's readable answers: sums to 0; a lone one gets 0."""
    acts_PG = _acts(~np.isnan(visits_PG), keep_PG, correct_PG, unless_all_right)
    b_PG = np.where(acts_PG, rarity(visits_PG), 0.0)
    others_P1 = acts_PG.sum(axis=1, keepdims=True) - 1
    mean_of_others_PG = (b_PG.sum(axis=1, keepdims=True) - b_PG) / np.maximum(others_P1, 1)
    return np.where(acts_PG & (others_P1 > 0), weight * (b_PG - mean_of_others_PG), 0.0)


def ucb_constant(
    visits_PG: np.ndarray,
    keep_PG: np.ndarray,
    correct_PG: np.ndarray | None = None,
    *,
    weight: float,
    baseline: float,
    unless_all_right: bool = True,
) -> np.ndarray:
    """weight · (b_i − baseline). A baseline of 0.5 changes sign at N = 4; one of 1 never pays, it only punishes."""
    acts_PG = _acts(~np.isnan(visits_PG), keep_PG, correct_PG, unless_all_right)
    return np.where(acts_PG, weight * (rarity(visits_PG) - baseline), 0.0)


def batch_exploration(
    answer_PG: np.ndarray | None,
    keep_PG: np.ndarray,
    correct_PG: np.ndarray | None = None,
    *,
    weight: float,
    unless_all_right: bool = True,
) -> np.ndarray:
    """−weight · (1/G) Σ_{j≠i} 1[a_j = a_i]: the share of the group that gave the same answer.

    Its expectation is −weight · ((G−1)/G) Σ_a p(a)², a collision penalty. `answer_PG` holds codes, −1 where no answer could
    be read; G counts every completion of the group, those included.
    """
    if answer_PG is None:
        raise UsageError("answer_PG is needed and was not measured: the column answer supplies it")
    acts_PG = _acts(answer_PG >= 0, keep_PG, correct_PG, unless_all_right)
    same_PGG = (answer_PG[:, :, None] == answer_PG[:, None, :]) & acts_PG[:, :, None] & acts_PG[:, None, :]
    others_PG = same_PGG.sum(axis=2) - 1
    size_P1 = np.maximum(keep_PG.sum(axis=1, keepdims=True), 1)
    return np.where(acts_PG & (others_PG > 0), -weight * others_PG / size_P1, 0.0)


def all_right(correct_PG: np.ndarray, keep_PG: np.ndarray) -> np.ndarray:
    """(P,): every completion of the group that was checked is right, and at least one was checked."""
    correct_PG = verdicts(keep_PG, correct_PG=correct_PG)
    return np.asarray((correct_PG == 1).any(axis=1) & ~(correct_PG == 0).any(axis=1))


def _acts(
    readable_PG: np.ndarray, keep_PG: np.ndarray, correct_PG: np.ndarray | None, unless_all_right: bool
) -> np.ndarray:
    """Where a term may be other than 0: there is a completion, its answer was read, and the group has something to explore."""
    same_shape(readable_PG=readable_PG, keep_PG=keep_PG)
    if not unless_all_right:
        return np.asarray(readable_PG & keep_PG)
    if correct_PG is None:
        raise UsageError(
            "the guard for groups that are all right needs correct_PG, and these groups were not checked: "
            "supply it, or set unless_all_right=False"
        )
    return np.asarray(readable_PG & keep_PG & ~all_right(correct_PG, keep_PG)[:, None])
