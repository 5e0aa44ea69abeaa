"""Trace confidence against slow loops over every window, and the running form against the whole list."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest

from equipoise.errors import UsageError
from equipoise.measures.trace_confidence import RULES, RunningGroup, group_confidences, trace_confidence


def slow_groups(tokens: list[float], window: int) -> list[float]:
    return [float(sum(map(Fraction, tokens[i : i + window])) / window) for i in range(len(tokens) - window + 1)]


def test_worked_by_hand():
    tokens = [4.0, 2.0, 6.0, 8.0, 1.0]  # groups of two: 3, 4, 7, 4.5
    assert group_confidences(tokens, window=2).tolist() == [3.0, 4.0, 7.0, 4.5]
    assert trace_confidence(tokens, "mean") == pytest.approx(21 / 5)
    assert trace_confidence(tokens, "lowest", window=2) == 3.0
    assert trace_confidence(tokens, "bottom", window=2, share=0.5) == 3.5  # of the groups 3 and 4
    assert trace_confidence(tokens, "bottom", window=2, share=0.1) == 3.0  # at least one group
    assert trace_confidence(tokens, "tail", tail=3) == 5.0
    assert trace_confidence(tokens, "tail", tail=50) == pytest.approx(21 / 5)


@pytest.mark.parametrize("rule", ["lowest", "bottom"])
def test_a_trace_shorter_than_the_window_has_its_mean(rule):
    assert trace_confidence([1.0, 3.0], rule, window=3) == 2.0
    assert trace_confidence([1.0, 3.0], rule, window=2) == 2.0
    assert group_confidences([1.0, 3.0], window=3).tolist() == []


@pytest.mark.parametrize("rule", RULES)
def test_no_tokens_are_not_measured(rule):
    assert trace_confidence([], rule) is None


def test_windows_equal_those_of_a_slow_loop():
    random = Random(1)
    for _ in range(60):
        window, n = random.randint(1, 12), random.randint(12, 80)
        tokens = [random.uniform(0.5, 30) for _ in range(n)]
        groups = sorted(slow_groups(tokens, window))
        assert group_confidences(tokens, window=window) == pytest.approx(slow_groups(tokens, window), abs=2e-10)
        assert trace_confidence(tokens, "lowest", window=window) == pytest.approx(groups[0], abs=2e-10)
        worst = groups[: max(1, len(groups) * 3 // 10)]
        assert trace_confidence(tokens, "bottom", window=window, share=0.3) == pytest.approx(np.mean(worst), abs=2e-10)


def test_the_running_group_is_that_of_the_whole_list_bit_for_bit():
    random = Random(2)
    for window in (1, 3, 10, 200):
        tokens = [random.uniform(0.5, 30) for _ in range(150)]
        running = RunningGroup(window)
        found = [running.add(token) for token in tokens]
        assert found[: window - 1] == [None] * min(window - 1, 150)
        assert found[window - 1 :] == group_confidences(tokens, window=window).tolist()
        assert running.lowest == trace_confidence(tokens, "lowest", window=window)
    assert RunningGroup().lowest is None


def test_equal_tokens_never_fall_below_their_own_mean():
    # 0.1 has no exact float: sums that add and subtract it drift, and a threshold of 0.1 would stop the trace.
    running = RunningGroup(7)
    groups = {running.add(0.1) for _ in range(5000)} - {None}
    assert groups == {trace_confidence([0.1] * 7, "mean")}
    assert set(group_confidences([0.1] * 5000, window=7).tolist()) == groups


def test_long_traces_stay_exact():
    tokens = np.concatenate([np.full(60_000, 17.3), np.full(2048, 0.25), np.full(30_000, 17.3)])
    assert trace_confidence(tokens, "lowest") == 0.25


@pytest.mark.parametrize("wrong", [{"window": 0}, {"tail": 0}, {"share": 0.0}, {"share": 1.5}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(UsageError, match="1 or more"):
        trace_confidence([1.0], "mean", **wrong)


def test_an_unknown_rule_is_named_with_the_known_ones():
    with pytest.raises(UsageError, match="did you mean 'lowest'"):
        trace_confidence([1.0], "lowst")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_refused(value):
    with pytest.raises(UsageError, match="not a finite number"):
        trace_confidence([1.0, value], "mean")
    with pytest.raises(UsageError, match="not a finite number"):
        RunningGroup(2).add(value)


def test_numbers_too_large_to_sum_exactly_are_refused():
    with pytest.raises(UsageError, match="sum to more than"):
        trace_confidence([1e9, 1e9, 1e9], "mean")
