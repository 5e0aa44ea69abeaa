"""The weights of TRL's reward functions, recovered from what a run logs.

TRL's files hold each function's reward and the advantage, but neither the weights nor the total. Two things tie them:

    mean total(step) = sum_f w_f * mean reward_f(step)         the log has the left side; unscored rewards count 0
    sum_f w_f * (reward_f - its group mean) = s_g * advantage  within a group g, with an unknown scale s_g > 0

Together they are linear in the weights and scales. The solution is taken only if the equations determine it and all hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

TOLERANCE = 2e-5  # logged means are float32, and averages of such
PARALLEL = 1 - 1e-4  # cosine of total and advantage within a group
SOLVE_ROWS = 1500  # rows that enter the equations; all rows enter the check


@dataclass(frozen=True, slots=True)
class StepRewards:
    """One step. Axes: B rows of the step, F reward functions."""

    rewards_BF: np.ndarray  # nan where a function gave no reward
    advantage_B: np.ndarray
    group_B: np.ndarray
    logged_mean: float  # of the total


def recover_weights(steps: Sequence[StepRewards]) -> tuple[float, ...] | None:
    """One weight a reward function, or None where the log does not determine them."""
    if not steps:
        return None
    weights_F = _solve(steps)
    if weights_F is None:
        return None
    # Weights are set by hand: where a number of three digits fits as well, it is the one that was set.
    for candidate_F in (np.round(weights_F, 3), weights_F):
        if all(_holds(step, candidate_F) for step in steps):
            return tuple(candidate_F.tolist())
    return None


def _solve(steps: Sequence[StepRewards]) -> np.ndarray | None:
    means_SF = np.stack([np.nan_to_num(step.rewards_BF).mean(axis=0) for step in steps])
    logged_S = np.array([step.logged_mean for step in steps])
    functions = means_SF.shape[1]
    groups: list[tuple[np.ndarray, np.ndarray]] = []
    for rewards_GF, advantage_G in (group for step in steps for group in _groups(step)):
        if sum(len(advantage) for _, advantage in groups) < SOLVE_ROWS and np.abs(advantage_G).max() > 1e-3:
            groups.append((rewards_GF, advantage_G))
    rows = len(steps) + sum(len(advantage_G) for _, advantage_G in groups)
    left = np.zeros((rows, functions + len(groups)))
    right = np.zeros(rows)
    left[: len(steps), :functions], right[: len(steps)] = means_SF, logged_S
    at = len(steps)
    for index, (rewards_GF, advantage_G) in enumerate(groups):
        end = at + len(advantage_G)
        left[at:end, :functions], left[at:end, functions + index] = rewards_GF, -advantage_G
        at = end
    if np.linalg.matrix_rank(left, tol=1e-4 * max(1.0, float(np.abs(left).max()))) < left.shape[1]:
        return None
    solution: np.ndarray = np.linalg.lstsq(left, right, rcond=None)[0]
    return solution[:functions]


def _holds(step: StepRewards, weights_F: np.ndarray) -> bool:
    """Whether the step's logged mean and every group's advantages are those that the weights give."""
    mean = float((np.nan_to_num(step.rewards_BF) @ weights_F).mean())
    if abs(mean - step.logged_mean) > TOLERANCE * max(1.0, abs(step.logged_mean)):
        return False
    for rewards_GF, advantage_G in _groups(step):
        centred_G = rewards_GF @ weights_F
        lengths = float(np.linalg.norm(centred_G) * np.linalg.norm(advantage_G))
        # Equal totals give zero advantages; tiny differences drown in rounding.
        if lengths > 1e-6 and float(centred_G @ advantage_G) < PARALLEL * lengths:
            return False
    return True


def _groups(step: StepRewards) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(rewards less the group's mean, advantages) of each group."""
    rewards_BF = np.nan_to_num(step.rewards_BF)
    for group in np.unique(step.group_B):
        rows = step.group_B == group
        yield rewards_BF[rows] - rewards_BF[rows].mean(axis=0), step.advantage_B[rows]
