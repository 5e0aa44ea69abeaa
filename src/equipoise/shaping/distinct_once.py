"""Every distinct right answer of a group is paid once. Axes: P groups, G completions each."""

from __future__ import annotations

import numpy as np

from equipoise.errors import UsageError, same_shape
from equipoise.shaping.inputs import verdicts


def distinct_once(
    correct_PG: np.ndarray | None, answer_PG: np.ndarray | None, keep_PG: np.ndarray, *, weight: float = 1.0
) -> np.ndarray:
    """What is added to a reward of 1 for right, so that the n_i right completions with one answer share it.

        weight · (1/n_i − 1) where right, else 0;   R_i = 1/n_i with weight 1

    The rewards of a group sum to the number D of its distinct right answers, and 1/n_i is the Shapley value of a completion in D.
    Over G completions the mean is D/G, so that A_i ∝ 1/n_i − D/G where right and −D/G where wrong:

        D = 1     R is 0 or 1/n: divided by the group's standard deviation these are the advantages of rewards 0 and 1
        D > 1     an answer that more than G/D gave is pushed down, a rarer one up, and wrong ones further down than either

    So it changes nothing where a group has one right answer, all alike included, whose advantages are 0. Without the division
    a group with one right answer pulls 1/n as hard. Codes of answers are those of `batch_exploration`: equal where their
    canonical forms are. A right completion without a readable answer shares with nobody.
    """
    if answer_PG is None:
        raise UsageError("answer_PG is needed and was not measured: the column answer supplies it")
    correct_PG = verdicts(keep_PG, correct_PG=correct_PG)
    same_shape(answer_PG=answer_PG, keep_PG=keep_PG)
    shares_PG = (correct_PG == 1) & (answer_PG >= 0)
    same_PGG = (answer_PG[:, :, None] == answer_PG[:, None, :]) & shares_PG[:, None, :]
    n_PG = np.maximum(same_PGG.sum(axis=2), 1)
    return np.where(shares_PG, weight * (1 / n_PG - 1), 0.0)
