"""The soft overlong penalty: knots by hand, continuity, and what it does with unknown lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import UsageError
from equipoise.shaping.overlong import soft_overlong


def of(lengths, **settings):
    lengths = np.asarray([lengths], dtype=float)
    return soft_overlong(lengths, np.ones(lengths.shape, dtype=bool), **settings)[0]


def test_worked_by_hand():
    # limit 100, buffer 20: free up to 80, half way at 90, −1 from 100 on.
    np.testing.assert_array_equal(
        of([0, 80, 85, 90, 100, 101, 10**6], limit=100, buffer=20), [0, 0, -0.25, -0.5, -1, -1, -1]
    )
    np.testing.assert_array_equal(of([90, 200], limit=100, buffer=20, penalty=0.4), [-0.2, -0.4])
    np.testing.assert_array_equal(of([16384, 18432, 20480]), [0, -0.5, -1])  # the paper's numbers


@given(
    limit=st.integers(1, 5000),
    buffer=st.integers(1, 5000),
    penalty=st.floats(0, 3),
    lengths=st.lists(st.integers(0, 12000), min_size=1, max_size=20),
)
def test_it_is_continuous_monotone_and_between_minus_the_penalty_and_zero(limit, buffer, penalty, lengths):
    buffer = min(buffer, limit)
    found = of(sorted(lengths), limit=limit, buffer=buffer, penalty=penalty)
    assert (found <= 0).all()
    assert (found >= -penalty).all()
    assert (np.diff(found) <= 0).all()
    # One token more never costs more than its share of the buffer.
    step = of(lengths, limit=limit, buffer=buffer, penalty=penalty) - of(
        [n + 1 for n in lengths], limit=limit, buffer=buffer, penalty=penalty
    )
    assert (step <= penalty / buffer + 1e-12).all()


def test_unknown_lengths_stay_unknown_and_no_minus_zero_comes_out():
    found = soft_overlong(np.array([[np.nan, 5.0, np.inf]]), np.array([[True, True, False]]), limit=10, buffer=2)
    np.testing.assert_array_equal(found, [[np.nan, 0.0, np.nan]])
    assert not np.signbit(found[0, 1])


@pytest.mark.parametrize("settings", [{"limit": 10, "buffer": 11}, {"buffer": 0}, {"penalty": -1.0}], ids=str)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(UsageError, match="the penalty needs 0 < buffer <= limit and penalty >= 0"):
        of([1, 2], **settings)


def test_lengths_are_needed():
    with pytest.raises(UsageError, match="n_tokens_PG is needed and was not measured: the column n_tokens"):
        soft_overlong(None, np.ones((1, 2), dtype=bool))
