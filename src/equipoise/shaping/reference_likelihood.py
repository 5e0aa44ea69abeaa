"""A reward from a reference answer: how likely a chain of thought makes it (R3 of DRO, https://arxiv.org/abs/2506.13351).

Axes: P groups, G completions each, J tokens of the group's reference answer. `logp_PGJ` is ℓ_ij = ln π(y_j | q, c_i, y_<j), the
log-prob of reference token j after completion i's chain of thought, under the reference, the current or a lagged policy;
`token_PJ` is False where a shorter reference is padded.

The paper leaves open the form of w and the value of γ. w(σ) = σ^power is ours; every open value is an argument without a
default. Not to be confused with verl's loss mode `dro`, another method.
"""

from __future__ import annotations

import numpy as np

from equipoise.errors import UsageError, same_shape
from equipoise.shaping.inputs import numbers


def reference_likelihood(
    logp_PGJ: np.ndarray,
    token_PJ: np.ndarray,
    keep_PG: np.ndarray,
    masked_logp_PGJ: np.ndarray | None = None,
    *,
    power: float,
) -> np.ndarray:
    """R_i = Σ_j w(σ_j) ℓ_ij with w(σ) = σ^power: tokens that a chain of thought can move count most.

    `power` 0 is the plain log-likelihood of the reference, which was seen to shrink chains of thought to nothing.
    With `masked_logp_PGJ`, ℓ_ij of the same completion with its chain masked out, R_i = Σ_j w(σ_j) (ℓ_ij − masked_ij): what the
    reference's own earlier tokens give away is taken off. One masked chain for the whole group would shift all its rewards
    alike and so change no advantage.
    (P, G), nan where a completion was not scored.
    """
    weight_PJ = spread_weight(token_spread(logp_PGJ, token_PJ, keep_PG), power=power)
    return weighted_likelihood(logp_PGJ, weight_PJ, token_PJ, keep_PG, masked_logp_PGJ)


def token_spread(logp_PGJ: np.ndarray, token_PJ: np.ndarray, keep_PG: np.ndarray) -> np.ndarray:
    """σ_j, the standard deviation of ℓ_ij over a group's scored completions, (P, J).

    Divided by their number, not one less. Nan for fewer than two of them, and under padding.
    """
    logp_PGJ, scored_PG = _tokens(logp_PGJ, token_PJ, keep_PG)
    n_P1 = scored_PG.sum(axis=1, keepdims=True)
    weight_PG1 = (scored_PG / np.maximum(n_P1, 1))[:, :, None]
    mean_P1J = (weight_PG1 * logp_PGJ).sum(axis=1, keepdims=True)
    sigma_PJ = np.sqrt((weight_PG1 * (logp_PGJ - mean_P1J) ** 2).sum(axis=1))
    return np.where(token_PJ & (n_P1 > 1), sigma_PJ, np.nan)


def spread_weight(sigma_PJ: np.ndarray, *, power: float) -> np.ndarray:
    """w(σ) = σ^power, ours. A spread that is not known counts as none."""
    if power < 0:
        raise UsageError(f"power is {power}: w must not fall with the spread, use 0 or more")
    return np.asarray(np.where(np.isnan(sigma_PJ), 0.0, sigma_PJ) ** power)


def weighted_likelihood(
    logp_PGJ: np.ndarray,
    weight_PJ: np.ndarray,
    token_PJ: np.ndarray,
    keep_PG: np.ndarray,
    masked_logp_PGJ: np.ndarray | None = None,
) -> np.ndarray:
    """Σ_j w_j ℓ_ij, or Σ_j w_j (ℓ_ij − masked_ij), for any weights; nan where a completion was not scored."""
    same_shape(weight_PJ=weight_PJ, token_PJ=token_PJ)
    gain_PGJ, scored_PG = _tokens(logp_PGJ, token_PJ, keep_PG)
    if masked_logp_PGJ is not None:
        same_shape(masked_logp_PGJ=masked_logp_PGJ, logp_PGJ=logp_PGJ)
        masked_PGJ, also_PG = _tokens(masked_logp_PGJ, token_PJ, keep_PG)
        gain_PGJ, scored_PG = gain_PGJ - masked_PGJ, scored_PG & also_PG
    weight_PJ = np.where(token_PJ, weight_PJ, 0.0)
    return np.where(scored_PG, (weight_PJ[:, None, :] * gain_PGJ).sum(axis=2), np.nan)


def propagate(
    logp_PGJ: np.ndarray, reflective_PJ: np.ndarray, token_PJ: np.ndarray, keep_PG: np.ndarray, *, gamma: float
) -> np.ndarray:
    """ℓ_ij + Σ_{reflective k<j} ln f(p_ik, j − k), f(p, d) = p + (1−p)(1 − e^{−γ d}), p_ik = e^{ℓ_ik}.

    Teacher forcing shows token j the right tokens before it, which hides that the chain of thought made one of them
    unlikely. f hands that doubt on: p_k at distance 0, fading to 1 far away. For the reward; the spread is taken before.
    """
    if not gamma > 0:
        raise UsageError(f"gamma is {gamma}: the doubt must fade with distance, use a value above 0")
    same_shape(reflective_PJ=reflective_PJ, token_PJ=token_PJ)
    known_PGJ, _ = _tokens(logp_PGJ, token_PJ, keep_PG)
    corrected_PGJ = np.array(logp_PGJ, dtype=np.float64)
    for k in np.flatnonzero((reflective_PJ & token_PJ).any(axis=0)):
        distance = np.arange(1, logp_PGJ.shape[2] - k)
        doubt_PG1 = -np.expm1(known_PGJ[:, :, k, None])  # 1 − p_k
        log_factor_PGJ = np.log1p(-doubt_PG1 * np.exp(-gamma * distance))
        corrected_PGJ[:, :, k + 1 :] += np.where(reflective_PJ[:, k, None, None], log_factor_PGJ, 0.0)
    return corrected_PGJ


def length_term(n_answer_PG: np.ndarray, n_reference_P: np.ndarray, keep_PG: np.ndarray, *, beta: float) -> np.ndarray:
    """1 − β · | |y| − |ŷ| | / |y|: how far the generated answer, without its chain of thought, is from the reference's length.

    Without it answers were seen to grow verbose. It is added to the reward with a weight of the user's; (P, G), nan where the
    length is not known.
    """
    n_answer_PG, n_reference_P = numbers(keep_PG, n_answer_PG=n_answer_PG), np.asarray(n_reference_P)
    if n_reference_P.shape != keep_PG.shape[:1] or not (n_reference_P > 0).all():
        raise UsageError(f"n_reference_P must hold one length above 0 for each of {len(keep_PG)} groups")
    return np.asarray(1 - beta * np.abs(n_reference_P[:, None] - n_answer_PG) / n_reference_P[:, None])


def _tokens(logp_PGJ: np.ndarray, token_PJ: np.ndarray, keep_PG: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs with 0 wherever they must not be read, and which completions have all of theirs, (P, G)."""
    if logp_PGJ.ndim != 3 or logp_PGJ.shape[:2] != keep_PG.shape or logp_PGJ.shape[::2] != token_PJ.shape:
        raise UsageError(
            f"log-probs of reference tokens are (P, G, J) beside keep_PG (P, G) and token_PJ (P, J): "
            f"found {logp_PGJ.shape}, {keep_PG.shape} and {token_PJ.shape}"
        )
    real_PGJ = keep_PG[:, :, None] & token_PJ[:, None, :]
    if (real_PGJ & ((logp_PGJ > 0) | np.isinf(logp_PGJ))).any():
        raise UsageError("a log-prob of a reference token is infinite or above 0: give finite natural logarithms")
    missing_PG = (real_PGJ & np.isnan(logp_PGJ)).any(axis=2)
    scored_PG = np.asarray(keep_PG & ~missing_PG & token_PJ.any(axis=1, keepdims=True))
    return np.where(real_PGJ & scored_PG[:, :, None], logp_PGJ, 0.0), scored_PG
