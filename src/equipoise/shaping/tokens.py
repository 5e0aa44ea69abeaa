"""Advantages of completions on their tokens. Axes: P groups, G completions each, B completions in rows, T tokens.

The advantage and an exploration bonus stay two tensors until the loss adds them, because they act on different tokens: the
bonus is kept off the final answer, where it would pay for writing another one under the same reasoning
(https://arxiv.org/abs/2509.06941).
"""

from __future__ import annotations

import numpy as np

from equipoise.errors import UsageError, same_shape


def spread_advantage(
    adv_PG: np.ndarray, keep_PG: np.ndarray, mask_BT: np.ndarray, *, row_PG: np.ndarray | None = None
) -> np.ndarray:
    """(B, T): a completion's advantage on each of its tokens, exactly 0 where `mask_BT` is False.

    Row b is the completion with `row_PG` = b (`Groups.row_PG`). Without it, B = P · G in reading order, or only the kept cells
    in reading order. Where `keep_PG` is False nothing is read; if it has a row, that row is 0.
    """
    return np.where(mask_BT, _rows(adv_PG, keep_PG, mask_BT, row_PG)[:, None], 0.0)


def spread_bonus(
    bonus_PG: np.ndarray,
    keep_PG: np.ndarray,
    mask_BT: np.ndarray,
    answer_BT: np.ndarray | None,
    *,
    row_PG: np.ndarray | None = None,
) -> np.ndarray:
    """(B, T): `spread_advantage` of a bonus, exactly 0 on the tokens of the final answer too.

    A completion that is all answer, as in Countdown, keeps none of it: `all_answer` finds those.
    """
    return spread_advantage(bonus_PG, keep_PG, mask_BT & ~_answer(mask_BT, answer_BT), row_PG=row_PG)


def all_answer(mask_BT: np.ndarray, answer_BT: np.ndarray | None) -> np.ndarray:
    """(B,): completions with tokens, all of them the answer's, so that a bonus kept off the answer does nothing."""
    return np.asarray(mask_BT.any(axis=1) & ~(mask_BT & ~_answer(mask_BT, answer_BT)).any(axis=1))


def _answer(mask_BT: np.ndarray, answer_BT: np.ndarray | None) -> np.ndarray:
    if answer_BT is None:
        raise UsageError(
            "a bonus kept off the answer needs answer_BT, the tokens of the final answer: whoever reads the answer supplies its span; "
            "spread_advantage spreads a bonus over every token"
        )
    same_shape(mask_BT=mask_BT, answer_BT=answer_BT)
    return _bool("answer_BT", answer_BT)


def _rows(values_PG: np.ndarray, keep_PG: np.ndarray, mask_BT: np.ndarray, row_PG: np.ndarray | None) -> np.ndarray:
    """(B,): the values in the order of the rows of `mask_BT`, 0 where nothing is kept."""
    values_PG = np.asarray(values_PG, dtype=np.float64)
    same_shape(values_PG=values_PG, keep_PG=keep_PG, **({} if row_PG is None else {"row_PG": row_PG}))
    _bool("keep_PG", keep_PG), _bool("mask_BT", mask_BT)
    if not np.isfinite(values_PG[keep_PG]).all():
        raise UsageError("an advantage of a kept completion is nan or infinite: it must be 0 where there is no reward")
    n_rows = len(mask_BT)
    rows = np.zeros(n_rows)
    if row_PG is not None:
        there_PG = row_PG >= 0
        if (keep_PG & ~there_PG).any() or (row_PG >= n_rows).any():
            raise UsageError(f"row_PG names rows outside the {n_rows} of mask_BT, or none for a kept completion")
        rows[row_PG[keep_PG]] = values_PG[keep_PG]
    elif n_rows == keep_PG.size:
        rows[keep_PG.ravel()] = values_PG[keep_PG]
    elif n_rows == keep_PG.sum():
        rows[:] = values_PG[keep_PG]
    else:
        raise UsageError(
            f"mask_BT has {n_rows} rows for {keep_PG.size} cells, {int(keep_PG.sum())} of them kept: give row_PG to say which is whose"
        )
    return rows


def _bool(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype != np.bool_ or array.ndim != 2:
        raise UsageError(f"{name} must be bool with two axes, found {array.dtype} of shape {array.shape}")
    return array
