"""How sure a completion was, from the confidences of its tokens (DeepConf, https://arxiv.org/abs/2508.15260).

A token's confidence is C = −(1/k) Σ_{j≤k} ln P(j) over the k likeliest tokens: high where the model is sure. A group is the last
`window` tokens, moved on by one token at a time; its confidence is their mean.

Numbers are rounded to 2^-32 and summed as integers. Sums are then exact, so that a group's mean does not depend on how it was
reached: token by token, from a whole list, or in pieces. A threshold is crossed at the same token in all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import isfinite
from typing import Literal, get_args

import numpy as np

from equipoise.errors import UsageError, unknown_name

Rule = Literal["mean", "bottom", "lowest", "tail"]
RULES: tuple[Rule, ...] = get_args(Rule)

_UNIT = 2**32
_MOST = 2**31  # the sum of a trace, so that it fits 63 bits in these units


def trace_confidence(
    token_confidences: Sequence[float] | np.ndarray,
    rule: Rule,
    *,
    window: int = 2048,
    share: float = 0.1,
    tail: int = 2048,
) -> float | None:
    """The confidence of a whole trace: of all tokens, of its worst groups, of its worst group, or of its end.

        mean     (1/n) Σ_i C_i
        bottom   mean of the ⌊share · groups⌋ lowest groups, at least one
        lowest   min over groups
        tail     mean of the last `tail` tokens

    A trace shorter than the window has no group: bottom and lowest are its mean, as in deepconf 0.1.0. None: it has no token.
    """
    if rule not in RULES:
        raise unknown_name("rule of trace confidence", rule, RULES)
    if window < 1 or tail < 1 or not 0 < share <= 1:
        raise UsageError(
            f"trace confidence with window={window}, tail={tail}, share={share}: window and tail are 1 or more, "
            "share is above 0 and at most 1"
        )
    units = _in_units(token_confidences)
    if not len(units):
        return None
    if rule == "tail":
        units = units[-tail:]
    if rule in ("mean", "tail") or len(units) < window:
        return int(units.sum()) / (len(units) * _UNIT)
    group_G = _group_sums(units, window)
    if rule == "lowest":
        return int(group_G.min()) / (window * _UNIT)
    worst = max(1, int(share * len(group_G)))
    return float(np.partition(group_G, worst - 1)[:worst].mean() / (window * _UNIT))


def group_confidences(token_confidences: Sequence[float] | np.ndarray, *, window: int = 2048) -> np.ndarray:
    """The confidence of every full group, the first ending at token number `window`; empty for a trace that is shorter."""
    if window < 1:
        raise UsageError(f"a group of {window} tokens: use 1 or more")
    return np.asarray(_group_sums(_in_units(token_confidences), window) / (window * _UNIT))


class RunningGroup:
    """The group confidence of a trace under way, and the lowest so far; a token costs the same however long the trace is."""

    def __init__(self, window: int = 2048) -> None:
        if window < 1:
            raise UsageError(f"a group of {window} tokens: use 1 or more")
        self.window = window
        self.n = 0
        self._last: deque[int] = deque(maxlen=window)
        self._sum = 0
        self._lowest: int | None = None

    def add(self, confidence: float) -> float | None:
        """The confidence of the group that ends with this token; None until there are `window` tokens."""
        if not isfinite(confidence):
            raise _not_finite()
        units = round(confidence * _UNIT)
        self._sum += units - (self._last[0] if self.n >= self.window else 0)
        self._last.append(units)
        self.n += 1
        if self.n < self.window:
            return None
        self._lowest = self._sum if self._lowest is None else min(self._lowest, self._sum)
        return self._sum / (self.window * _UNIT)

    @property
    def lowest(self) -> float | None:
        """As `trace_confidence(…, "lowest")` of the tokens so far."""
        if self._lowest is not None:
            return self._lowest / (self.window * _UNIT)
        return self._sum / (self.n * _UNIT) if self.n else None


def _in_units(token_confidences: Sequence[float] | np.ndarray) -> np.ndarray:
    values = np.asarray(token_confidences, dtype=np.float64)
    if not np.isfinite(values).all():
        raise _not_finite()
    if len(values) and float(np.abs(values).max()) * len(values) >= _MOST:
        raise UsageError(
            f"{len(values)} token confidences up to {np.abs(values).max():g} sum to more than {_MOST}: they should be "
            "mean log-probs with the sign changed, mostly below 100"
        )
    return np.rint(values * _UNIT).astype(np.int64)


def _group_sums(units: np.ndarray, window: int) -> np.ndarray:
    if len(units) < window:
        return np.empty(0, dtype=np.int64)
    sums = np.concatenate([[0], np.cumsum(units)])
    return np.asarray(sums[window:] - sums[:-window])


def _not_finite() -> UsageError:
    return UsageError("a token confidence is not a finite number: leave it out of the list, or give no list at all")
