"""Pass@k Training: normalised advantages of pass@k (https://arxiv.org/abs/2508.10751). Axes: P groups, G completions each."""

from __future__ import annotations

import numpy as np

from equipoise.measures.subsets import missed_share
from equipoise.shaping.inputs import group_size, verdicts


def passk_training(correct_PG: np.ndarray | None, keep_PG: np.ndarray, *, k: int) -> np.ndarray:
    """Advantages over all k-subsets of a group, a subset's reward being 1 where any of it is right.

        ρ = 1 − C(w, k)/C(n, k),   σ = √(ρ(1−ρ)),   c right and w = n − c wrong of n
        A_right = (1 − ρ)/σ
        A_wrong = (1 − ρ − C(w−1, k−1)/C(n−1, k−1))/σ

    They sum to 0 over the group and equal ((n/k) · s_i − ρ)/σ with s_i of `pkpo.pkpo_right_rewards`. All are exactly 0 where
    every subset is alike: c = 0, or w < k. Verdicts not known are outside n; a group with fewer than k verdicts gets 0.

    Not verl's `grpo_passk`, which pays only the best completion, by its lead over the second (https://arxiv.org/abs/2503.19595).
    """
    correct_PG = verdicts(keep_PG, correct_PG=correct_PG)
    group_size(keep_PG, k)
    n_P1 = (~np.isnan(correct_PG)).sum(axis=1, keepdims=True)
    c_P1 = np.nansum(correct_PG, axis=1, keepdims=True).astype(np.int64)
    missed_P1 = missed_share(c_P1, n_P1, k)  # 1 − ρ; nan where n < k
    all_wrong_P1 = missed_share(c_P1, np.maximum(n_P1 - 1, 0), k - 1)  # the rest of a wrong one's subset, all wrong too
    sigma_P1 = np.sqrt((1 - missed_P1) * missed_P1)
    above_PG = np.where(correct_PG == 1, missed_P1, missed_P1 - all_wrong_P1)
    acts_PG = ~np.isnan(correct_PG) & (sigma_P1 > 0)  # False where σ is nan
    return np.where(acts_PG, above_PG / np.where(sigma_P1 > 0, sigma_P1, 1.0), 0.0)
