"""Which prompts a likelihood reward can learn from (DRO, https://arxiv.org/abs/2506.13351): before training, and again later.

Axes: P prompts, G completions each, J tokens of the prompt's reference answer. First `within_reach`, then `varied` on what is
left, then `carry_over` where a set is filtered again. Thresholds that the paper does not give are arguments without default.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.errors import UsageError, same_shape


def within_reach(
    rank_PGJ: np.ndarray, token_PJ: np.ndarray, keep_PG: np.ndarray, *, worst_share: float, top: float
) -> np.ndarray:
    """(P,): for some completion, the worst reference tokens rank `top` or better on average; 1 is the likeliest token.

    The worst are the `worst_share` of a reference's tokens with the highest ranks, at least one. A prompt without any
    scored completion (nan: not scored) is not known to be out of reach and stays.
    """
    _share("worst_share", worst_share)
    if rank_PGJ.ndim != 3 or rank_PGJ.shape[:2] != keep_PG.shape or rank_PGJ.shape[::2] != token_PJ.shape:
        raise UsageError(
            f"ranks of reference tokens are (P, G, J) beside keep_PG (P, G) and token_PJ (P, J): "
            f"found {rank_PGJ.shape}, {keep_PG.shape} and {token_PJ.shape}"
        )
    rank_PGJ = np.where(token_PJ[:, None, :], rank_PGJ, 0)
    scored_PG = keep_PG & ~np.isnan(rank_PGJ).any(axis=2)
    worst_first_PGJ = -np.sort(-rank_PGJ, axis=2)
    n_worst_P = np.maximum(np.ceil(worst_share * token_PJ.sum(axis=1) - 1e-9), 1)
    taken_P1J = np.arange(rank_PGJ.shape[2]) < n_worst_P[:, None, None]
    mean_PG = (worst_first_PGJ * taken_P1J).sum(axis=2) / n_worst_P[:, None]
    return np.asarray((scored_PG & (mean_PG <= top)).any(axis=1) | ~scored_PG.any(axis=1))


def varied(sigma_PJ: np.ndarray, token_PJ: np.ndarray, *, drop_share: float) -> np.ndarray:
    """(P,): prompts ranked by max_j σ_j (`token_spread`), the lowest share dropped.

    At most `drop_share` of the ranked prompts go: those level with the first one kept are kept. A prompt whose spread is not
    known is not ranked and stays.
    """
    _share("drop_share", drop_share)
    same_shape(sigma_PJ=sigma_PJ, token_PJ=token_PJ)
    known_PJ = token_PJ & ~np.isnan(sigma_PJ)
    ranked_P = known_PJ.any(axis=1)
    largest_P = np.where(known_PJ, sigma_PJ, -np.inf).max(axis=1, initial=-np.inf)
    ordered = np.sort(largest_P[ranked_P])
    n_dropped = int(drop_share * len(ordered) + 1e-9)
    if n_dropped == 0:
        return np.ones(len(sigma_PJ), dtype=bool)
    if n_dropped == len(ordered):
        return np.asarray(~ranked_P)
    return np.asarray(~ranked_P | (largest_P >= ordered[n_dropped]))


def carry_over(kept: Sequence[str], previous: Sequence[str], *, seed: int, share: float = 0.1) -> tuple[str, ...]:
    """The next set: what was kept, and as many as `share` of the previous set from those that were not, drawn at random.

    The paper carries 10 % over; that they are drawn evenly from what would be dropped is ours. The draw does not depend on order.
    """
    _share("share", share)
    dropped = sorted(set(previous) - set(kept))
    n = min(int(share * len(set(previous)) + 1e-9), len(dropped))
    drawn = np.sort(np.random.default_rng(seed).permutation(len(dropped))[:n])
    return (*kept, *(dropped[i] for i in drawn))


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise UsageError(f"{name} is {value}: a share lies between 0 and 1")
