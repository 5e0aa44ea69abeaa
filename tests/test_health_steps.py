"""Group health at every step, against a loop over groups; and the same from a trainer's log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from making import evidence_of, find

from equipoise.measures.evidence import Options
from equipoise.measures.health_steps import MISSING, estimate_health_steps
from equipoise.measures.step_buckets import step_buckets


def by_step(rows, metrics=()):
    evidence = replace(evidence_of(rows), metrics=tuple(metrics))
    return estimate_health_steps(evidence, baseline=None, options=Options())


def test_each_step_against_a_loop_over_its_groups():
    rng = np.random.default_rng(2)
    rows, expected = [], {}
    for step in range(6):
        dead, wrong, right, cut = [], [], [], []
        for prompt in range(10):
            rewards = (rng.random(4) < rng.choice([0.05, 0.5, 0.95])).astype(float)
            ends = rng.choice(["stop", "length"], size=4)
            dead.append(len(set(rewards)) == 1)
            wrong.append(not rewards.any())
            right.append(rewards.all())
            cut.append(np.mean(ends == "length"))
            rows += [
                {
                    "prompt_id": f"p{prompt}",
                    "group_id": f"g{step}-{prompt}",
                    "step": step,
                    "reward": r,
                    "finish_reason": str(e),
                }
                for r, e in zip(rewards, ends, strict=True)
            ]
        means = (np.mean(dead), np.mean(wrong), np.mean(right), 1 - np.mean(dead), np.mean(cut))
        expected[step] = dict(
            zip(("dead_groups", "all_wrong", "all_right", "effective_samples", "truncated"), means, strict=True)
        )
    numbers = by_step(rows)
    for step, values in expected.items():
        for name, value in values.items():
            found = find(numbers, name, step=step)
            assert (found.value, found.n) == (pytest.approx(value, abs=1e-12), 10)


def test_a_log_gives_what_it_says_without_an_interval():
    metrics = [
        {"step": 1, "group_zero_std_frac": 0.25, "truncated_frac": 0.5},
        {"step": 2, "group_zero_std_frac": 0.5},
        {"step": 3, "group_zero_std_frac": float("nan"), "all_wrong": 0.125},
    ]
    numbers = by_step([{"prompt_id": "a"}], metrics)
    assert [(n.name, n.at["step"], n.value) for n in numbers] == [
        ("dead_groups", 1, 0.25),
        ("dead_groups", 2, 0.5),
        ("all_wrong", 3, 0.125),
        ("truncated", 1, 0.5),
    ]
    assert all(n.n == 1 and n.low is None and n.at["source"] == "log" and "no interval" in n.how for n in numbers)


def test_what_is_missing_is_named():
    (none,) = by_step([{"prompt_id": "a", "reward": 1.0, "group_id": "g"}])
    assert (none.value, none.missing) == (None, MISSING)


def test_a_long_run_is_cut_into_stretches_that_hold_every_row_once():
    steps = np.asarray([*range(250), 7, np.nan], dtype=float)
    found = list(step_buckets(steps, most=100))
    assert len(found) <= 100
    assert found[0][0] == [0, 2]
    assert found[-1][0] == [249, 249]
    assert sorted(np.concatenate([rows for _, rows in found]).tolist()) == list(range(251))
    for (first, last), rows in found:
        assert {first, last} <= set(steps[rows].astype(int)) <= set(range(first, last + 1))


def test_a_short_run_has_a_point_for_each_step():
    found = list(step_buckets(np.asarray([5.0, 2.0, 5.0])))
    assert [(step, rows.tolist()) for step, rows in found] == [(2, [1]), (5, [0, 2])]
    assert list(step_buckets(np.asarray([np.nan]))) == []
    assert list(step_buckets(np.empty(0))) == []
