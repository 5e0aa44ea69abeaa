"""The Gaussian picture of variance inflation: how wide a policy should be, given how far off its centre is."""

from __future__ import annotations

import math

from equipoise.errors import UsageError


def widening_optimum(gap: float, *, reward_sd: float) -> float:
    """The variance of a policy N(μ, v) at which its expected reward is highest; the reward is N(μ + gap, reward_sd²)'s density.

        E[r] = N(gap; 0, reward_sd² + v)  ⇒  v* = max(0, gap² − reward_sd²)

    So a wider policy helps only while its centre is off by more than `reward_sd`; past v* the mass is diluted
    (https://arxiv.org/abs/2506.04210).
    """
    if not reward_sd > 0 or not math.isfinite(gap):
        raise UsageError(
            f"a gap and a width of the reward above 0 are needed, found gap={gap:g}, reward_sd={reward_sd:g}"
        )
    return max(0.0, gap * gap - reward_sd * reward_sd)
