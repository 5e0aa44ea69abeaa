"""A policy learnt from a pool in many orders, and the actions it gives each question. Axes: Q questions, R orders, A actions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.infer.allocation import Allocation, allocate, fit_prior, success_gains
from equipoise.infer.policy import Bin, Goal, Option, Policy
from equipoise.lab.plan_orders import Ordered, Orders

MOST_BINS = 5  # as many as https://arxiv.org/abs/2408.03314 sorts questions into
MIN_IN_BIN = 5.0  # questions' worth of orders


def learn_policy(ordered: Ordered, *, goal: Goal, pilot: int, most: int | None = None) -> Policy:
    """What every option was worth in each bin of pilots, over all orders. It has no price yet.

    Vote: means over the orders of each bin, so no option has more samples than were recorded. Verified: a bin with a right
    sample is solved, and gains nothing; the chance of the other is the Beta-binomial's of all questions, given that the pilot
    failed, to `most` samples.
    """
    state_QR = ordered.pilot.state_QRK[:, :, pilot - 1]
    bins = [
        _bin(ordered, state_QR, low, high, goal=goal, pilot=pilot, most=most)
        for low, high in (_solved_or_not(state_QR) if goal == "verified" else _edges(state_QR))
    ]
    return Policy(goal, pilot, ordered.pilot.cap, 0.0, tuple(bins))


def _solved_or_not(state_QR: np.ndarray) -> list[tuple[int, int]]:
    solved, unsolved = bool((state_QR > 0).any()), bool((state_QR == 0).any())
    return [*([(0, 0)] if unsolved else []), *([(1, int(state_QR.max()))] if solved else [])]


def _edges(state_QR: np.ndarray) -> list[tuple[int, int]]:
    """Neighbouring states together, until no bin is too small and there are few enough."""
    states, counts = np.unique(state_QR, return_counts=True)
    bins = [(int(state), int(state)) for state in states]
    weights = (counts / state_QR.shape[1]).tolist()
    while len(bins) > MOST_BINS or (len(bins) > 1 and min(weights) < MIN_IN_BIN):
        least = int(np.argmin(weights))
        beside = [place for place in (least - 1, least + 1) if 0 <= place < len(bins)]
        low, high = sorted((least, min(beside, key=lambda place: weights[place])))
        bins[low : high + 1] = [(bins[low][0], bins[high][1])]
        weights[low : high + 1] = [weights[low] + weights[high]]
    return bins


def _bin(
    ordered: Ordered, state_QR: np.ndarray, low: int, high: int, *, goal: Goal, pilot: int, most: int | None
) -> Bin:
    inside_QR = (state_QR >= low) & (state_QR <= high)
    first = ordered.pilot
    spent = first.tokens_QRK[inside_QR][:, pilot - 1]
    solved = goal == "verified" and low > 0  # one right sample is all that is needed
    options = [Option(pilot, first.cap, 1.0, 0.0)] if solved else []
    for each in () if solved else ordered.caps:
        value_K = each.right_QRK[inside_QR].mean(axis=0, dtype=float)
        tokens_K = each.tokens_QRK[inside_QR].mean(axis=0) - (spent.mean() if each is first else 0.0)
        if goal == "verified" and each is first:
            value_K, tokens_K = _unsolved(ordered, tokens_K, pilot=pilot, most=most)
        least = pilot if each is first else 1
        options += [
            Option(k, each.cap, float(value_K[k - 1]), float(tokens_K[k - 1])) for k in range(least, len(value_K) + 1)
        ]
    return Bin(low, high, float(inside_QR.mean()), float(spent.mean()) / pilot, tuple(options))


def _unsolved(ordered: Ordered, tokens_K: np.ndarray, *, pilot: int, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """1 − B(a, b + k) / B(a, b + pilot) for k samples of which the pilot's were wrong, at the mean cost of a sample."""
    size = max(most or 0, len(tokens_K))
    right_Q = ordered.pilot.state_QRK[:, 0, -1]
    prior = fit_prior(right_Q, np.full(len(right_Q), ordered.pilot.size))
    gains = success_gains([0], [pilot], most=size - pilot, prior=prior)[0]
    values = np.concatenate([np.zeros(pilot), np.cumsum(gains)])
    each = tokens_K[-1] / max(len(tokens_K) - pilot, 1)
    return values, each * np.maximum(np.arange(1, size + 1) - pilot, 0)


@dataclass(frozen=True, slots=True)
class Assigned:
    """The option of every question in one order, with its expected cost besides the pilot."""

    options: tuple[Option, ...]
    cost_Q: np.ndarray
    allocation: Allocation


def assign(policy: Policy, state_Q: np.ndarray, sample_tokens_Q: np.ndarray, *, budget: float) -> Assigned:
    """The best options for these questions together, of those that cost at most `budget` besides their pilots."""
    bins = [policy.find_bin(int(state)) for state in state_Q]
    width = max(len(each.options) for each in bins)
    value_QA, cost_QA = np.full((len(bins), width), np.nan), np.full((len(bins), width), np.nan)
    for q, (each, tokens) in enumerate(zip(bins, sample_tokens_Q, strict=True)):
        value_QA[q, : len(each.options)] = [option.value for option in each.options]
        cost_QA[q, : len(each.options)] = each.costs(float(tokens))
    found = allocate(value_QA, cost_QA, budget=budget)
    options = tuple(each.options[a] for each, a in zip(bins, found.chosen_Q.tolist(), strict=True))
    return Assigned(options, cost_QA[np.arange(len(bins)), found.chosen_Q], found)


def realised(ordered: Ordered, order: int, options: tuple[Option, ...], *, pilot: int) -> tuple[np.ndarray, np.ndarray]:
    """Whether each question was answered right in one order, and its tokens, the pilot's included."""
    by_cap: dict[int | None, Orders] = {each.cap: each for each in ordered.caps}
    right_Q, tokens_Q = np.zeros(len(options)), np.zeros(len(options))
    for q, option in enumerate(options):
        drawn, k = by_cap[option.cap], option.samples - 1
        right_Q[q], tokens_Q[q] = drawn.right_QRK[q, order, k], drawn.tokens_QRK[q, order, k]
        if drawn is not ordered.pilot:
            tokens_Q[q] += ordered.pilot.tokens_QRK[q, order, pilot - 1]
    return right_Q, tokens_Q
