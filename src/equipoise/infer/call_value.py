"""What another call of a tool is worth, and when it is worth its cost.

    go on while   ΔV / cost ≥ price · (budget / left)

ΔV is how much likelier the answer will be right, cost that of a call with the tokens around it, and the price what a unit of cost
must buy; it rises as the calls run out. The papers that this follows (https://arxiv.org/abs/2605.05701, https://arxiv.org/abs/2511.17006)
score actions by value per cost under such a penalty; the formulas here are ours. Axes: E episodes, T calls, S states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.errors import UsageError, same_shape


def worth_a_call(gain: float, *, cost: float, price: float, budget: int, left: int) -> bool:
    """Whether a call that adds `gain` is to be made, with `left` of `budget` calls left."""
    return left > 0 and gain >= price * cost * budget / left


def unsettled_gain(agreement: float, *, fresh: int, calls: int) -> float:
    """(1 − agreement) · (1 + fresh) / (2 + calls): what is still open, times the chance that a call brings something new.

    `agreement`: the share of trial answers that the most common one has, those that gave none counted as others. `fresh`: calls so
    far whose reply had not been seen before. A run of stale replies talks the value down; agreement ends it.
    """
    return (1 - agreement) * (1 + fresh) / (2 + calls)


@dataclass(frozen=True, slots=True)
class Gains:
    """What further calls have added in recorded episodes, by calls made and by what the last reply looked like."""

    rate_TS: np.ndarray  # the best mean gain per call over any number of further calls; nan: never seen

    def of(self, calls: int, state: int) -> float:
        """0 beyond the calls that were recorded: nothing is known to be gained there."""
        if calls >= len(self.rate_TS):
            return 0.0
        found = float(self.rate_TS[calls, state])
        return 0.0 if np.isnan(found) else found


def learn_gains(best_ET: np.ndarray, state_ET: np.ndarray, *, states: int, prior: float = 10.0) -> Gains:
    """Learn the value of going on from episodes.

        rate(t, s) = max_h E[R_{t+h} − R_t | state s after t calls] / h

    `best_ET`: the best score after each of T calls, nan from the end of an episode that stopped on its own. `state_ET`: a code for
    what was seen, −1 where there is nothing. Looking h calls ahead matters: a call that lists tables scores nothing, and the one
    after it does. Each state's mean is drawn towards that of all states by `prior` episodes, since some states are rare.
    """
    same_shape(best=best_ET, state=state_ET)
    if best_ET.ndim != 2 or not best_ET.size:
        raise UsageError(f"gains are learned from episodes × calls, found an array of shape {best_ET.shape}")
    held_ET = _hold(best_ET)
    total = best_ET.shape[1]
    rate_TS = np.full((total, states), np.nan)
    for t in range(total - 1):
        going = np.isfinite(best_ET[:, t]) & np.isfinite(best_ET[:, t + 1])
        if not going.any():
            continue
        gain_EH = (held_ET[going, t + 1 :] - held_ET[going, t, None]) / np.arange(1, total - t)
        overall_H = gain_EH.mean(axis=0)
        for s in range(states):
            rows = gain_EH[state_ET[going, t] == s]
            if len(rows):
                rate_TS[t, s] = ((rows.sum(axis=0) + prior * overall_H) / (len(rows) + prior)).max()
    return Gains(rate_TS)


def _hold(best_ET: np.ndarray) -> np.ndarray:
    """An episode that ended keeps its best."""
    held = best_ET.copy()
    for t in range(1, held.shape[1]):
        held[:, t] = np.where(np.isnan(held[:, t]), held[:, t - 1], held[:, t])
    return held
