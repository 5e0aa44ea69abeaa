"""How much of (pass@1, pass@k) a policy reaches by its temperature alone. Axes: S seeds, T temperatures, P problems, D draws.

A policy at temperature t is the point (x_t, y_t): pass@1 and pass@k, means over the problems. Whoever serves it chooses t, so a
policy reaches every point that is no better in either than one of its own. The volume is the area of those above (0, 0):

    V = area of the union over t of [0, x_t] × [0, y_t]

Between temperatures nothing is interpolated: more temperatures can only raise V, so compare arms at the same ones. V of an arm is
the mean over its seeds' own V. The interval of a difference resamples problems, the same ones for both arms, and adds the spread
of the seeds' differences, from 3 seeds on. A front is the best of several noisy points, which raises every V a little; arms share
their problems and sampling seeds, so that most of it is gone from a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from equipoise.lab.study_numbers import DRAWS, Compared, Policies, over_resamples
from equipoise.measures.intervals import Floats


def area(x_DT: Floats, y_DT: Floats) -> Floats:
    """(D,): the area of the union over T of [0, x] × [0, y]."""
    order_DT = np.argsort(-x_DT, axis=1, kind="stable")
    x_DT, y_DT = (np.take_along_axis(values_DT, order_DT, axis=1) for values_DT in (x_DT, y_DT))
    highest_DT = np.maximum.accumulate(y_DT, axis=1)  # among those that reach at least as far to the right
    steps_DT = x_DT - np.concatenate([x_DT[:, 1:], np.zeros((len(x_DT), 1))], axis=1)
    return np.asarray((steps_DT * highest_DT).sum(axis=1))


def volumes(arms: Sequence[Policies], *, k: int, seed: int = 0) -> list[dict[str, Any]]:
    """Of every arm V with its interval, its best pass@1 and pass@k over temperatures, and V minus that of every other arm."""
    n = len(arms[0].outcomes[0].problems)
    weights_DP = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS) / n
    of_all = np.full((1, n), 1 / n)
    each = {arm.arm: _volumes(arm, k, of_all)[:, 0] for arm in arms}
    drawn = {arm.arm: _volumes(arm, k, weights_DP) for arm in arms}
    return [
        {
            "arm": arm.arm,
            "volume": asdict(_over_both(each[arm.arm], drawn[arm.arm], n)),
            "best_pass@1": float(arm.passes(1).mean(axis=(0, 2)).max()),
            f"best_pass@{k}": float(arm.passes(k).mean(axis=(0, 2)).max()),
            "differences": [
                {"against": other.arm}
                | asdict(_over_both(each[arm.arm] - each[other.arm], drawn[arm.arm] - drawn[other.arm], n))
                for other in arms
                if other is not arm
            ],
        }
        for arm in arms
    ]


def _volumes(arm: Policies, k: int, weights_DP: Floats) -> Floats:
    """(S, D)."""
    pairs = zip(arm.passes(1), arm.passes(k), strict=True)
    return np.stack([area(weights_DP @ x_TP.T, weights_DP @ y_TP.T) for x_TP, y_TP in pairs])


def _over_both(each_S: Floats, drawn_SD: Floats, n: int) -> Compared:
    how = f"area under the front over temperatures; {DRAWS} resamples of problems"
    return over_resamples(float(each_S.mean()), each_S, drawn_SD.mean(axis=0), n, how)
