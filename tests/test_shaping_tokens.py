"""Advantages on tokens: a slow loop, and a bonus whose place on the answer is exactly empty."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.errors import UsageError
from equipoise.shaping.tokens import all_answer, spread_advantage, spread_bonus

NAN = np.nan


def masks(rng, rows, tokens=6):
    """Ragged completions of 1 to 6 tokens whose answers are their last 0 to 3."""
    length = rng.integers(1, tokens + 1, rows)
    place = np.arange(tokens)
    mask = place < length[:, None]
    return mask, mask & (place >= (length - rng.integers(0, 4, rows))[:, None])


@pytest.mark.parametrize("seed", range(5))
def test_each_completion_s_values_reach_its_tokens_and_no_others(seed):
    rng = np.random.default_rng(seed)
    keep = rng.random((4, 3)) < 0.7
    row = np.full((4, 3), -1)
    row[keep] = rng.permutation(keep.sum())
    adv = np.where(keep, rng.normal(size=(4, 3)), NAN)
    mask, answer = masks(rng, int(keep.sum()))
    base = spread_advantage(adv, keep, mask, row_PG=row)
    bonus = spread_bonus(2 * adv, keep, mask, answer, row_PG=row)
    for p, g in np.argwhere(keep):
        for t in range(mask.shape[1]):
            b = row[p, g]
            assert base[b, t] == (adv[p, g] if mask[b, t] else 0)
            assert bonus[b, t] == (2 * adv[p, g] if mask[b, t] and not answer[b, t] else 0)
    assert not bonus[answer].any()
    assert not base[~mask].any()


def test_rows_without_row_numbers():
    adv, keep = np.array([[1.0, 2.0], [3.0, NAN]]), np.array([[True, True], [True, False]])
    every = np.ones((4, 2), dtype=bool)
    assert spread_advantage(adv, keep, every)[:, 0].tolist() == [1, 2, 3, 0]
    assert spread_advantage(adv, keep, every[:3])[:, 0].tolist() == [1, 2, 3]
    with pytest.raises(UsageError, match="mask_BT has 2 rows for 4 cells, 3 of them kept: give row_PG"):
        spread_advantage(adv, keep, every[:2])


def test_a_completion_that_a_filter_took_out_keeps_its_row_with_zeros():
    keep = np.array([[True, False, True]])
    found = spread_advantage(
        np.array([[1.0, 5.0, -1.0]]), keep, np.ones((3, 2), dtype=bool), row_PG=np.array([[2, 1, 0]])
    )
    assert found.tolist() == [[-1, -1], [0, 0], [1, 1]]


def test_a_completion_that_is_all_answer_has_no_bonus_left():
    mask = np.array([[True, True, False], [True, True, True], [False, False, False]])
    answer = np.array([[True, True, True], [False, True, True], [True, True, True]])
    assert all_answer(mask, answer).tolist() == [True, False, False]
    keep = np.ones((3, 1), dtype=bool)
    assert spread_bonus(np.ones((3, 1)), keep, mask, answer).tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]


ONE = np.ones((1, 2))
YES = ONE.astype(bool)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spread_advantage(np.array([[1.0, NAN]]), YES, YES.T), "must be 0 where there is no reward"),
        (lambda: spread_advantage(ONE, YES[:, :1], YES.T), "these must share one shape"),
        (lambda: spread_advantage(ONE, YES, ONE.T), "mask_BT must be bool"),
        (lambda: spread_advantage(ONE, ONE, YES.T), "keep_PG must be bool"),
        (lambda: spread_advantage(ONE, YES, YES.T, row_PG=np.array([[0, 2]])), "outside the 2 of mask_BT"),
        (lambda: spread_advantage(ONE, YES, YES.T, row_PG=np.array([[0, -1]])), "or none for a kept completion"),
        (lambda: spread_bonus(ONE, YES, YES.T, None), "needs answer_BT"),
        (lambda: spread_bonus(ONE, YES, YES.T, YES), "these must share one shape"),
        (lambda: all_answer(YES, ONE), "answer_BT must be bool"),
    ],
)
def test_bad_input_is_told_in_one_line(call, message):
    with pytest.raises(UsageError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
