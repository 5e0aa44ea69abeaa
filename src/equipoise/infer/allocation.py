"""One token budget over many questions: what a further sample is worth, and where the next tokens do most.

    max Σ_q value(q, a_q)   such that   Σ_q cost(q, a_q) ≤ budget

Its Lagrangian falls apart into questions, argmax_a value − price · cost (https://arxiv.org/abs/2604.14853), and cost falls as the
price rises. The price at which the budget is met need not be searched for: with growing budget a question moves along the
upper hull of its (cost, value) points, so all steps of all hulls in the order of value per token are the path of every
price. Axes: Q questions, A actions, K further samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import betaln, expit, logit

from equipoise.errors import UsageError

_CONCENTRATIONS = (0.05, 500.0)  # a + b of a prior: no pilot tells more extreme ones apart


class Prior(NamedTuple):
    """Beta(a, b) over questions of the chance that one sample is right."""

    a: float
    b: float


def fit_prior(right_Q: ArrayLike, drawn_Q: ArrayLike) -> Prior:
    """The Beta prior that makes these counts likeliest: Π_q B(a + r_q, b + n_q − r_q) / B(a, b)."""
    right, drawn = np.asarray(right_Q, float), np.asarray(drawn_Q, float)
    if not drawn.sum() > 0 or (right > drawn).any() or (right < 0).any():
        raise UsageError(
            f"a prior needs questions with 0 ≤ right ≤ drawn, found {right.sum():g} right of {drawn.sum():g}"
        )

    def surprise(point: np.ndarray) -> float:
        mean, size = expit(point[0]), np.exp(point[1])
        a, b = mean * size, (1 - mean) * size
        return float(-(betaln(a + right, b + drawn - right) - betaln(a, b)).sum())

    edge = 0.5 / (drawn.sum() + 1)  # where all samples agree, the mean stays half a sample from 0 and 1
    start = np.clip(right.sum() / drawn.sum(), edge, 1 - edge)
    bounds = [(logit(edge), logit(1 - edge)), tuple(np.log(_CONCENTRATIONS))]
    found = minimize(surprise, [logit(start), 0.0], bounds=bounds, method="L-BFGS-B").x
    mean, size = float(expit(found[0])), float(np.exp(found[1]))
    return Prior(mean * size, (1 - mean) * size)


def success_gains(right_Q: ArrayLike, drawn_Q: ArrayLike, *, most: int, prior: Prior) -> np.ndarray:
    """What the j-th further sample adds to the chance that one of them is right, j = 1 … `most`: (Q, K).

        E[p (1 − p)^{j−1}]  with  p ~ Beta(a + right, b + drawn − right)

    p (1 − p)^{j−1} is the gain at a known success rate (adaptive best-of-k, https://arxiv.org/abs/2410.04707); a pilot of a few
    samples does not know it, and the rate 0 of 4 samples would buy no fifth. Non-increasing in j.
    """
    right, drawn = np.asarray(right_Q, float)[:, None], np.asarray(drawn_Q, float)[:, None]
    a, b = prior.a + right, prior.b + drawn - right
    return np.asarray(np.exp(betaln(a + 1, b + np.arange(most)) - betaln(a, b)))


def best_action(value_A: ArrayLike, cost_A: ArrayLike, *, price: float) -> int:
    """argmax_a value − price · cost; of equals the cheapest. Actions that are nan are not there."""
    value, cost = np.asarray(value_A, float), np.asarray(cost_A, float)
    net = np.where(
        np.isfinite(value) & np.isfinite(cost), value - price * np.where(np.isfinite(cost), cost, 0), -np.inf
    )
    best = np.flatnonzero(net >= net.max() - 1e-12)
    return int(best[np.argmin(cost[best])])


@dataclass(frozen=True, slots=True)
class Allocation:
    """An action for every question. `price`: value that one token more would buy; 0 where nothing is left to buy."""

    chosen_Q: np.ndarray
    price: float
    spent: float
    value: float


def allocate(value_QA: ArrayLike, cost_QA: ArrayLike, *, budget: float) -> Allocation:
    """An action for each question, of those that together cost at most `budget` (nan: a question does not have that action).

    Every question starts at its cheapest action. Steps up the hulls are taken in the order of value per token; one that does
    not fit ends its question's climb, and others may still use what is left. Weak duality bounds what any split could be worth:
    no more than what was reached when a step first did not fit, plus price times what was unspent then.
    """
    value, cost = np.asarray(value_QA, float), np.asarray(cost_QA, float)
    if value.shape != cost.shape or value.ndim != 2:
        raise UsageError(f"allocation needs a value and a cost of every action: shapes {value.shape} and {cost.shape}")
    hulls = [_hull(value_A, cost_A) for value_A, cost_A in zip(value, cost, strict=True)]
    chosen = np.asarray([hull[0] for hull in hulls], dtype=np.int64)
    spent = float(sum(cost[q, a] for q, a in enumerate(chosen)))
    if spent > budget * (1 + 1e-12):
        raise UsageError(
            f"the cheapest action of all {len(chosen)} questions costs {spent:,.0f} and the budget is {budget:,.0f}: "
            "raise it, or plan for fewer questions"
        )
    price, full = 0.0, set()
    for step in sorted(_steps(hulls, value, cost), key=lambda step: (-step.worth, step.cost)):
        if step.question in full:
            continue
        if spent + step.cost > budget * (1 + 1e-12):
            full.add(step.question)
            price = price or step.worth
            continue
        chosen[step.question], spent = step.action, spent + step.cost
    return Allocation(chosen, price, spent, float(sum(value[q, a] for q, a in enumerate(chosen))))


class _Step(NamedTuple):
    question: int
    action: int
    worth: float  # value per token
    cost: float


def _steps(hulls: Sequence[Sequence[int]], value: np.ndarray, cost: np.ndarray) -> list[_Step]:
    steps = []
    for q, hull in enumerate(hulls):
        for low, high in pairwise(hull):
            more = float(cost[q, high] - cost[q, low])
            steps.append(_Step(q, high, float(value[q, high] - value[q, low]) / more, more))
    return steps


def _hull(value_A: np.ndarray, cost_A: np.ndarray) -> list[int]:
    """The actions on the upper hull, from the cheapest to the most valuable: every one worth less per token than the last."""
    there = np.flatnonzero(np.isfinite(value_A) & np.isfinite(cost_A))
    if not len(there):
        raise UsageError("a question has no action at all: give each one, if only that of spending nothing")
    hull: list[int] = []
    for a in sorted(there.tolist(), key=lambda a: (cost_A[a], -value_A[a])):
        if hull and value_A[a] <= value_A[hull[-1]]:
            continue
        while len(hull) > 1 and _rise(hull[-2], hull[-1], value_A, cost_A) <= _rise(hull[-1], a, value_A, cost_A):
            hull.pop()
        hull.append(a)
    return hull


def _rise(low: int, high: int, value_A: np.ndarray, cost_A: np.ndarray) -> float:
    more = cost_A[high] - cost_A[low]
    return float((value_A[high] - value_A[low]) / more) if more > 0 else np.inf
