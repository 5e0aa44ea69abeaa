"""REINFORCE on right and wrong completions with weights of their own. Axes: P groups, G completions each."""

from __future__ import annotations

import numpy as np

from equipoise.shaping.inputs import verdicts


def weighted_reinforce(correct_PG: np.ndarray | None, keep_PG: np.ndarray, *, up: float = 0.1) -> np.ndarray:
    """A = `up` where right, −1 where wrong, 0 without a verdict (W-REINFORCE, https://arxiv.org/abs/2506.01347).

    There is no baseline. Pushing a wrong completion down hands its mass to all others as the policy weighs them, right or not;
    pushing a right one up takes it from all others, other right ones included: the first keeps pass@k, the second spends it.
    `up` 0 learns from wrong completions alone; a group that is all right still learns with `up` above 0.
    """
    correct_PG = verdicts(keep_PG, correct_PG=correct_PG)
    return np.where(correct_PG == 1, up, np.where(correct_PG == 0, -1.0, 0.0))
