"""Filters on raw verdicts: hand tables, reasons that add up, and the shaped reward that they refuse."""

from __future__ import annotations

import inspect
from itertools import product

import numpy as np
import pytest

from equipoise.errors import UsageError
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.groups import Groups
from equipoise.shaping import filters
from equipoise.shaping.advantages import group_std
from equipoise.shaping.filters import (
    drop_degenerate,
    drop_shortcuts,
    mask_truncated,
    mixed_groups,
    pilot_groups,
    scored,
)
from equipoise.shaping.overlong import soft_overlong

NAN = np.nan
FILTERS = {
    "mixed_groups": lambda c, keep: mixed_groups(correct_PG=c, keep_PG=keep),
    "pilot_groups": lambda c, keep: pilot_groups(correct_PG=c, keep_PG=keep, draws=2),
    "drop_degenerate": lambda c, keep: drop_degenerate(degenerate_PG=c, keep_PG=keep),
    "drop_shortcuts": lambda c, keep: drop_shortcuts(correct_PG=c, degenerate_PG=c, keep_PG=keep),
    "mask_truncated": lambda c, keep: mask_truncated(truncated_PG=c, keep_PG=keep),
    "scored": lambda c, keep: scored(reward_PG=c, keep_PG=keep),
}


def full(values):
    values = np.asarray(values, dtype=float)
    return values, np.ones(values.shape, dtype=bool)


def test_dynamic_sampling_keeps_every_mixed_group_and_no_other():
    for verdicts in product([0.0, 1.0], repeat=4):
        correct, keep = full([verdicts])
        found = mixed_groups(correct_PG=correct, keep_PG=keep)
        assert found.keep_PG.all() == (0 < sum(verdicts) < 4)
        assert found.keep_PG.any() == found.keep_PG.all()


def test_dynamic_sampling_with_unchecked_completions_and_padding():
    correct = np.array([[1, NAN, NAN], [0, NAN, 1], [NAN, NAN, NAN], [1, 1, 0], [0, 0, 1]])
    keep = np.ones((5, 3), dtype=bool)
    keep[3:, 2] = False  # the one that would have mixed them was never drawn
    found = mixed_groups(correct_PG=correct, keep_PG=keep)
    np.testing.assert_array_equal(found.keep_PG, [[False] * 3, [True] * 3, [False] * 3, [False] * 3, [False] * 3])
    assert found.counts == {"all_wrong": 2, "all_right": 5, "unchecked": 3}
    assert found.groups == {"all_wrong": 1, "all_right": 2, "unchecked": 1}


def test_the_pilot_rule_at_its_bounds():
    right = [0, 1, 2, 8, 12, 13, 16]
    correct, keep = full([[1.0] * c + [0.0] * (16 - c) for c in right])
    found = pilot_groups(correct_PG=correct, keep_PG=keep)
    # 2 of 16 is 0.125 and 12 of 16 is 0.75: neither below nor above.
    assert found.decision_P == ("defer", "defer", "commit", "commit", "commit", "skip", "skip")
    np.testing.assert_array_equal(found.rate_P, np.array(right) / 16)
    assert found.groups == {"too_easy": 2, "too_hard": 1, "none_right": 1}
    assert found.keep_PG.all(axis=1).tolist() == [False, False, True, True, True, False, False]


def test_too_few_verdicts_decide_nothing():
    correct, keep = full([[0.0] * 8 + [NAN] * 8, [1.0] * 15 + [NAN], [NAN] * 16])
    found = pilot_groups(correct_PG=correct, keep_PG=keep)
    assert found.decision_P == ("unknown", "unknown", "unknown")
    assert found.keep_PG.all()
    assert found.rate_P[:2].tolist() == [0.0, 1.0]
    assert np.isnan(found.rate_P[2])


def test_none_right_of_eight_is_put_off_by_the_too_hard_row():
    correct, keep = full([[0.0] * 8, [1.0] + [0.0] * 7, [1.0] * 8])
    found = pilot_groups(correct_PG=correct, keep_PG=keep, draws=8, defer_below=0.125, skip_above=1.0)
    assert found.decision_P == ("defer", "commit", "commit")
    assert found.counts == {"too_easy": 0, "too_hard": 0, "none_right": 8}


def test_the_rate_is_unbiased():
    p, n = 0.3, 6
    draws = np.array(list(product([0.0, 1.0], repeat=n)))
    chance = np.prod(np.where(draws == 1, p, 1 - p), axis=1)
    found = pilot_groups(correct_PG=draws, keep_PG=np.ones(draws.shape, dtype=bool))
    assert chance @ found.rate_P == pytest.approx(p, abs=1e-12)


def test_degenerate_truncated_and_unscored_completions_go_one_by_one():
    keep = np.array([[True, True, True, False]])
    flags = np.array([[1.0, 0.0, NAN, 1.0]])  # the third was not looked at: nothing speaks against it
    for found, reason in [
        (drop_degenerate(degenerate_PG=flags, keep_PG=keep), "degenerate"),
        (mask_truncated(truncated_PG=flags, keep_PG=keep), "truncated"),
    ]:
        assert found.keep_PG.tolist() == [[False, True, True, False]]
        assert found.counts == {reason: 1}
    found = scored(reward_PG=np.array([[0.3, NAN, -2.0, NAN]]), keep_PG=keep)
    assert found.keep_PG.tolist() == [[True, False, True, False]]
    assert found.counts == {"unscored": 1}


def test_a_shortcut_is_right_and_degenerate():
    correct, keep = full([[1, 1, 0, 0, NAN]])
    flags = np.array([[1, 0, 1, 0, 1]])
    found = drop_shortcuts(correct_PG=correct, degenerate_PG=flags, keep_PG=keep)
    assert found.keep_PG.tolist() == [[False, True, True, True, True]]
    assert found.counts == {"shortcut": 1}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_is_a_pure_function_of_verdicts(name):
    rng = np.random.default_rng(1)
    keep = rng.random((40, 5)) < 0.8
    values = rng.choice([0.0, 1.0, NAN], (40, 5), p=[0.5, 0.4, 0.1])
    before = values.copy(), keep.copy()
    found = FILTERS[name](values, keep)
    np.testing.assert_array_equal(values, before[0])
    np.testing.assert_array_equal(keep, before[1])
    # Every completion is kept, or dropped for one reason; nothing appears.
    total = found.keep_PG.astype(int) + sum(mask.astype(int) for mask in found.dropped.values())
    np.testing.assert_array_equal(total, keep.astype(int))
    # Junk under the padding, the order of groups and completions, and bool verdicts change nothing.
    junk = np.where(keep, values, np.inf)
    np.testing.assert_array_equal(FILTERS[name](junk, keep).keep_PG, found.keep_PG)
    rows, columns = rng.permutation(40), rng.permutation(5)
    moved = FILTERS[name](values[rows][:, columns], keep[rows][:, columns])
    np.testing.assert_array_equal(moved.keep_PG, found.keep_PG[rows][:, columns])
    plain = np.nan_to_num(values)
    np.testing.assert_array_equal(FILTERS[name](plain.astype(bool), keep).keep_PG, FILTERS[name](plain, keep).keep_PG)
    # Applied to what it left, it takes no more.
    again = FILTERS[name](values, found.keep_PG)
    np.testing.assert_array_equal(again.keep_PG, found.keep_PG)
    assert FILTERS[name](np.empty((0, 0)), np.empty((0, 0), dtype=bool)).keep_PG.shape == (0, 0)


def test_a_shaped_reward_cannot_pass_for_a_verdict():
    # Four wrong answers of different lengths: the shaped reward differs, and its group-normalised advantage is full-size.
    wrong, keep = full([[0.0] * 4])
    shaped = wrong + soft_overlong(
        np.array([[700.0, 850.0, 900.0, 1000.0]]), keep, limit=1000, buffer=200, penalty=1e-2
    )
    assert np.abs(group_std(shaped, keep)).max() > 1
    with pytest.raises(UsageError, match=r"must hold 0, 1 or nan, found -0\.0025: pass the raw verdicts"):
        mixed_groups(correct_PG=shaped, keep_PG=keep)
    with pytest.raises(UsageError, match="never a shaped reward"):
        pilot_groups(correct_PG=shaped, keep_PG=keep)
    assert not mixed_groups(correct_PG=wrong, keep_PG=keep).keep_PG.any()
    # And no array has a place without its name.
    public = [f for _, f in inspect.getmembers(filters, inspect.isfunction) if f.__module__ == filters.__name__]
    for function in (f for f in public if not f.__name__.startswith("_")):
        parameters = inspect.signature(function).parameters.values()
        assert all(p.kind is p.KEYWORD_ONLY for p in parameters)
        assert ("reward_PG" in {p.name for p in parameters}) == (function is scored)


def test_filters_chain_on_groups_of_rollouts():
    rows = [
        {"group_id": "a", "prompt_id": "p", "correct": c, "reward": r, "finish_reason": f}
        for c, r, f in [(True, 1.0, "stop"), (False, 0.0, "length"), (False, None, "stop")]
    ] + [{"group_id": "b", "prompt_id": "q", "correct": True, "reward": 1.0, "finish_reason": "stop"}] * 2
    groups = Groups.of(Rollouts.of_rows(rows))
    mixed = mixed_groups(correct_PG=groups.correct_PG, keep_PG=groups.keep_PG)
    whole = mask_truncated(truncated_PG=groups.truncated_PG, keep_PG=mixed.keep_PG)
    known = scored(reward_PG=groups.reward_PG, keep_PG=whole.keep_PG)
    assert groups.to_rows(known.keep_PG).tolist() == [True, False, False, False, False]
    assert mixed.counts | whole.counts | known.counts == {
        "all_wrong": 0, "all_right": 2, "unchecked": 0, "truncated": 1, "unscored": 1
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"degenerate_PG is needed and was not measured: Groups\.of"):
        drop_degenerate(degenerate_PG=groups.degenerate_PG, keep_PG=groups.keep_PG)


@pytest.mark.parametrize(
    "settings", [{"draws": 0}, {"defer_below": 0.8}, {"skip_above": 1.5}, {"defer_below": -0.1}], ids=str
)
def test_a_pilot_that_makes_no_sense_is_refused(settings):
    correct, keep = full([[0.0, 1.0]])
    with pytest.raises(UsageError, match="a pilot needs"):
        pilot_groups(correct_PG=correct, keep_PG=keep, **settings)
