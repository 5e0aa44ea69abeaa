"""Rewards that stay vectors: a set of answers is worth its best one under weights not known beforehand.

VPO, https://arxiv.org/abs/2605.22817. Axes: P groups, G completions each, M answers in one completion, K parts of the reward,
W weightings. The paper asks for 3 to 5 answers, draws 100 weightings with alpha 1, and has 8 completions to a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from zlib import crc32

import numpy as np
from scipy.special import betaincinv
from scipy.stats import qmc

from equipoise.errors import UsageError, same_shape, unknown_name

Missing = Literal["zero", "left_out"]
Draw = Literal["random", "sobol"]


def draw_weights(
    prompt_ids_P: Sequence[str | None], *, parts: int, draws: int, alpha: float, seed: int, how: Draw = "random"
) -> np.ndarray:
    """w ∼ Dirichlet(alpha, …, alpha), (P, W, K): one set of draws per group, shared by all of its completions.

    Shared draws cancel in the comparison of two completions; the authors' walkthrough draws per completion, their code per
    group. Seed and prompt id fix a group's draws wherever it stands in the batch: give every step another seed. "sobol"
    spreads the draws evenly (a number that is a power of 2), for several times less noise in the advantage.
    """
    if parts < 1 or draws < 1 or not alpha > 0:
        raise UsageError(f"weights need parts and draws of at least 1 and an alpha above 0: {parts}, {draws}, {alpha}")
    if how not in ("random", "sobol"):
        raise unknown_name("way to draw weights", how, ("random", "sobol"))
    if how == "sobol" and draws & (draws - 1):
        raise UsageError(
            f"Sobol points are even only in powers of 2: use {1 << draws.bit_length()} draws instead of {draws}"
        )
    weight_PWK = np.empty((len(prompt_ids_P), draws, parts))
    for p, prompt_id in enumerate(prompt_ids_P):
        rng = np.random.default_rng([seed, crc32((prompt_id or "").encode("utf-8", "surrogatepass"))])
        weight_PWK[p] = _dirichlet(_uniform(rng, draws, parts - 1, how), alpha)
    return weight_PWK


def first_of_each(answer_PGM: np.ndarray) -> np.ndarray:
    """(P, G, M): an answer that was read (code 0 or more) and does not repeat an earlier one of the same completion."""
    same_PGMM = answer_PGM[..., :, None] == answer_PGM[..., None, :]
    earlier_MM = np.tri(answer_PGM.shape[-1], k=-1, dtype=bool)
    return np.asarray((answer_PGM >= 0) & ~(same_PGMM & earlier_MM).any(axis=-1))


def set_reward(
    reward_PGMK: np.ndarray,
    present_PGM: np.ndarray,
    keep_PG: np.ndarray,
    weight_PWK: np.ndarray,
    *,
    missing: Missing = "zero",
) -> np.ndarray:
    """R(S) = mean_w max_{s ∈ S} w · r_s, (P, G); nan under padding.

    `present_PGM` (`first_of_each`) says which answers count. The others are rows of zeros, as in most of the paper's tasks, or
    "left_out", as in its code task: the two differ only where rewards can be negative. Without any answer R is 0.
    """
    if reward_PGMK.ndim != 4 or weight_PWK.ndim != 3 or reward_PGMK.shape[::3] != weight_PWK.shape[::2]:
        raise UsageError(
            f"set rewards need reward vectors (P, G, M, K) and weights (P, W, K): found {reward_PGMK.shape} and {weight_PWK.shape}"
        )
    if missing not in ("zero", "left_out"):
        raise unknown_name("rule for missing answers", missing, ("zero", "left_out"))
    if present_PGM.shape != reward_PGMK.shape[:3] or keep_PG.shape != reward_PGMK.shape[:2]:
        raise UsageError(
            f"reward vectors {reward_PGMK.shape} need present_PGM and keep_PG of their first axes: "
            f"found {present_PGM.shape} and {keep_PG.shape}"
        )
    counted_PGM = present_PGM & keep_PG[:, :, None]
    vector_PGMK = np.where(counted_PGM[..., None], reward_PGMK, 0.0)
    if not np.isfinite(vector_PGMK).all():
        raise UsageError(
            "a part of an answer's reward is nan or infinite: mark an answer without a score as not present"
        )
    score_PGMW = np.einsum("pgmk,pwk->pgmw", vector_PGMK, weight_PWK)
    if missing == "left_out":
        score_PGMW = np.where(counted_PGM[..., None] | ~counted_PGM.any(axis=2)[:, :, None, None], score_PGMW, -np.inf)
    best_PGW = score_PGMW.max(axis=2) if score_PGMW.shape[2] else np.zeros((*keep_PG.shape, weight_PWK.shape[1]))
    return np.where(keep_PG, best_PGW.mean(axis=2), np.nan)


def set_advantage(reward_PG: np.ndarray, keep_PG: np.ndarray, *, eps: float) -> np.ndarray:
    """(R − mean) / (std + eps) with the group's population std, and exactly 0 where std < eps.

    A completion without a reward (nan) is left out and gets 0, as does padding. Do not normalise again: switch off the host's own scaling (TRL: scale_rewards).
    """
    same_shape(reward_PG=reward_PG, keep_PG=keep_PG)
    known_PG = keep_PG & ~np.isnan(reward_PG)
    n_P1 = np.maximum(known_PG.sum(axis=1, keepdims=True), 1)
    reward_PG = np.where(known_PG, reward_PG, 0.0)
    above_PG = np.where(known_PG, reward_PG - reward_PG.sum(axis=1, keepdims=True) / n_P1, 0.0)
    std_P1 = np.sqrt((above_PG**2).sum(axis=1, keepdims=True) / n_P1)
    return np.where(std_P1 < eps, 0.0, above_PG / (std_P1 + eps))


def vector_advantage(
    reward_PGMK: np.ndarray,
    answer_PGM: np.ndarray,
    keep_PG: np.ndarray,
    prompt_ids_P: Sequence[str | None],
    *,
    draws: int,
    alpha: float,
    seed: int,
    how: Draw = "random",
    missing: Missing = "zero",
    eps: float = 1e-6,
) -> np.ndarray:
    """The whole method: draws shared by a group, repeated answers dropped, the set's reward, its z-score in the group.

    One answer with one part is GRPO. Parts that rise and fall together put no pressure on variety. (P, G), for all tokens of a
    completion alike.
    """
    weight_PWK = draw_weights(prompt_ids_P, parts=reward_PGMK.shape[-1], draws=draws, alpha=alpha, seed=seed, how=how)
    reward_PG = set_reward(reward_PGMK, first_of_each(answer_PGM), keep_PG, weight_PWK, missing=missing)
    return set_advantage(reward_PG, keep_PG, eps=eps)


def _uniform(rng: np.random.Generator, draws: int, columns: int, how: Draw) -> np.ndarray:
    if how == "random" or columns == 0:
        return rng.random((draws, columns))
    points = qmc.Sobol(columns, scramble=True, seed=rng)
    return np.asarray(points.random_base2(draws.bit_length() - 1))


def _dirichlet(uniform_WC: np.ndarray, alpha: float) -> np.ndarray:
    """Break a stick of length 1: piece c takes the Beta(alpha, alpha · pieces after it) quantile of what is left."""
    draws, cuts = uniform_WC.shape
    left_W, weight_WK = np.ones(draws), np.empty((draws, cuts + 1))
    for c in range(cuts):
        taken_W = left_W * betaincinv(alpha, alpha * (cuts - c), uniform_WC[:, c])
        weight_WK[:, c], left_W = taken_W, left_W - taken_W
    weight_WK[:, cuts] = left_W
    return weight_WK
