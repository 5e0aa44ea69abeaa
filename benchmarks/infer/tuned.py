"""Rules compared fairly: each is tuned on one half of the problems and measured on the other, and the halves change places.

Axes: P problems, S settings of a rule; outcomes are (4, P, S): tokens, agreement, right, samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.measures.intervals import Interval, mean_of_prompts, paired_difference, ratio_of_sums

TOKENS, AGREES, RIGHT, SAMPLES = range(4)


def mixture(cost_S: np.ndarray, loss_S: np.ndarray, most: float) -> np.ndarray:
    """Weights of the cheapest mix of settings whose loss is at most `most`: a point of the lower convex hull.

    A mix plays one of two settings at random for each question, so that any loss can be met exactly; the grid of
    settings then favours no rule.
    """
    best, weights = np.inf, np.zeros(len(cost_S))
    for i in range(len(cost_S)):
        for j in range(len(cost_S)):
            if loss_S[i] > most:
                continue
            # As much of j, which may lose more, as the limit allows.
            share = 0.0 if loss_S[j] <= loss_S[i] else min(1.0, (most - loss_S[i]) / (loss_S[j] - loss_S[i]))
            cost = (1 - share) * cost_S[i] + share * cost_S[j]
            if cost < best - 1e-12:
                best, weights = cost, np.zeros(len(cost_S))
                weights[i] += 1 - share
                weights[j] += share
    return weights


def halves(problems: int, seed: int) -> list[np.ndarray]:
    order = np.random.default_rng(seed).permutation(problems)
    return [np.sort(order[: problems // 2]), np.sort(order[problems // 2 :])]


def tuned(
    outcomes: np.ndarray, single: np.ndarray, whole: np.ndarray, *, by: str, most: float, seed: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """(4, P) on problems that had no part in the choice, and the weights that each half chose.

    `single`, `whole`: (4, P) of one sample and of all, which every rule may be mixed with.
    `by`: "disagreement", the share of questions answered otherwise than by all samples; or "accuracy", points lost to them.
    """
    every = np.concatenate([outcomes, single[:, :, None], whole[:, :, None]], axis=2)
    found, chosen = np.zeros(whole.shape), []
    first, second = halves(whole.shape[1], seed)
    for tune, test in ((first, second), (second, first)):
        cost_S = every[TOKENS, tune].mean(axis=0) / whole[TOKENS, tune].mean()
        loss_S = (
            1 - every[AGREES, tune].mean(axis=0)
            if by == "disagreement"
            else whole[RIGHT, tune].mean() - every[RIGHT, tune].mean(axis=0)
        )
        weights = mixture(cost_S, loss_S, most)
        found[:, test] = every[:, test] @ weights
        chosen.append(weights)
    return found, chosen


def summary(mine: np.ndarray, whole: np.ndarray) -> dict[str, Any]:
    """The numbers of one rule over all problems."""
    problems = np.arange(mine.shape[1])
    return {
        "tokens": float(mine[TOKENS].mean()),
        "samples": float(mine[SAMPLES].mean()),
        "tokens_share": told(ratio_of_sums(mine[TOKENS], whole[TOKENS], problems)),
        "disagreement": told(mean_of_prompts(1 - mine[AGREES], bounds=(0, 1))),
        "accuracy": told(mean_of_prompts(mine[RIGHT], bounds=(0, 1))),
        "accuracy_difference": told(paired_difference(mine[RIGHT], whole[RIGHT])),
        "n": int(mine.shape[1]),
    }


def token_difference(mine: np.ndarray, peer: np.ndarray, whole: np.ndarray) -> dict[str, Any]:
    """Tokens of one rule less those of another, as a share of all tokens, paired by problem."""
    mean = whole[TOKENS].mean()
    return told(paired_difference(mine[TOKENS] / mean, peer[TOKENS] / mean))


def told(number: Interval) -> dict[str, Any]:
    return {"value": number.value, "low": number.low, "high": number.high}
