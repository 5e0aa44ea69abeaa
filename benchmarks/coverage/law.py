"""The law R = −a·exp(H) + b on curves whose residuals have autocorrelation .8. `prompts` are steps, `samples` is not used.

A forecast is judged on the mean reward of the last tenth, as it came out. "batch noise" adds 0.015 to 0.03 nats of noise to
the logged entropy, to which the reward does not answer: least squares then flattens the law a little, and an early forecast
of a run whose entropy has hardly moved misses on one side.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.coverage import worlds
from benchmarks.coverage.case import Case, Shown
from equipoise.measures.intervals import Interval
from equipoise.measures.law import fit_law

SIZES = ((60, 1), (120, 1), (200, 1))
DRAWS = 300


def curve(
    rng: np.random.Generator, steps: int, _: int, *, shape: str, a: float, b: float, rho: float, batch_noise: float
) -> Iterator[Shown]:
    entropy_S, reward_S = worlds.law_curve(rng, steps, shape=shape, a=a, b=b, rho=rho, batch_noise=batch_noise)
    fit = fit_law(np.arange(steps), entropy_S, reward_S)
    assert fit.a is not None
    assert fit.b is not None
    assert fit.ceiling is not None
    for name, found, truth in (("a", fit.a, a), ("b", fit.b, b), ("ceiling", fit.ceiling, b - a)):
        yield name, found.low, found.high, truth
    for past in fit.backtest:
        assert past.at_final_entropy is not None
        yield f"forecast at {past.share:.0%}", past.at_final_entropy.low, past.at_final_entropy.high, past.truth
    low, high = _block_bootstrap(rng, entropy_S, reward_S, fit.ceiling)
    yield "rejected: ceiling, moving blocks of residuals", low, high, b - a


def _block_bootstrap(
    rng: np.random.Generator, entropy_S: np.ndarray, reward_S: np.ndarray, ceiling: Interval
) -> tuple[float, float]:
    """Blocks of 2 S^(1/3) residuals, put back on the fit; basic interval."""
    steps = len(reward_S)
    x_SK = np.column_stack([np.exp(entropy_S), np.ones(steps)])
    reach_SK = np.linalg.pinv(x_SK).T
    residual_S = reward_S - x_SK @ (reach_SK.T @ reward_S)
    length = round(2 * steps ** (1 / 3))
    starts = rng.integers(0, steps - length + 1, (DRAWS, -(-steps // length)))
    rows_DS = (starts[:, :, None] + np.arange(length)).reshape(DRAWS, -1)[:, :steps]
    low, high = np.quantile(residual_S[rows_DS] @ reach_SK.sum(axis=1), [0.025, 0.975])
    return ceiling.value - float(high), ceiling.value - float(low)


_DECAY = partial(curve, shape="decay", a=0.5, b=1.1)
_PLATEAU = partial(curve, shape="plateau", a=1.33, b=2.2)

CASES = [
    Case("decay, ρ .8", partial(_DECAY, rho=0.8, batch_noise=0.0), SIZES),
    Case("plateau, ρ .8", partial(_PLATEAU, rho=0.8, batch_noise=0.0), SIZES),
    Case("decay, ρ 0", partial(_DECAY, rho=0.0, batch_noise=0.0), SIZES),
    Case("stress: decay, ρ .8, batch noise", partial(_DECAY, rho=0.8, batch_noise=0.03), SIZES),
    Case("stress: plateau, ρ .8, batch noise", partial(_PLATEAU, rho=0.8, batch_noise=0.015), SIZES),
]
