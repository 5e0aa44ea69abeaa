"""Groups, truncation, length and degenerate texts, by hand and by pandas; and from a trainer's log alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from making import evidence_of, find

from equipoise.measures.evidence import Evidence, Options, collect
from equipoise.measures.health import count_groups, estimate_health
from equipoise.rollouts.run import Run, RunInfo


def group(prompt, rewards, **cells):
    return [{"prompt_id": prompt, "group_id": f"g-{prompt}", "reward": r, **cells} for r in rewards]


def estimates_of(rows, *needs, baseline=None):
    other = None if baseline is None else evidence_of(baseline, *needs)
    return estimate_health(evidence_of(rows, *needs), baseline=other, options=Options())


def test_a_group_is_dead_when_its_rewards_are_equal():
    rows = group("a", [1, 1, 1]) + group("b", [0, 1, 0]) + group("c", [0, 0, 0]) + group("d", [0.5, 0.5, 0.4])
    numbers = estimates_of(rows)
    assert find(numbers, "dead_groups").value == pytest.approx(2 / 4)
    assert find(numbers, "dead_groups").n == 4


def test_rewards_that_differ_in_the_last_digit_are_equal():
    rows = group("a", [0.1 + 0.2, 0.3]) + group("b", [1e9, 1e9 + 1e-3]) + group("c", [0.30001, 0.3])
    counts = count_groups(evidence_of(rows).answers)
    assert counts.dead_N.tolist() == [1, 1, 0]


def test_a_single_rollout_is_no_group_and_an_unscored_one_does_not_count():
    rows = group("a", [1]) + group("b", [0, None]) + group("c", [0, 1, None]) + group("d", [1, 1, None])
    counts = count_groups(evidence_of(rows).answers)
    assert counts.size_N.tolist() == [2, 2]
    assert counts.dead_N.tolist() == [0, 1]


def test_all_right_and_all_wrong():
    rows = group("a", [1, 1]) + group("b", [0, 0]) + group("c", [0, 1]) + group("d", [0, 0])
    numbers = estimates_of(rows)
    assert find(numbers, "all_right").value == pytest.approx(1 / 4)
    assert find(numbers, "all_wrong").value == pytest.approx(2 / 4)


def test_a_dead_group_of_partial_credit_is_neither_all_right_nor_judged():
    rows = group("a", [0.5, 0.5]) + group("b", [0.2, 0.9])
    numbers = estimates_of(rows)
    assert find(numbers, "dead_groups").value == 0.5
    assert not [n for n in numbers if n.name in ("all_right", "all_wrong")]


def test_verdicts_stand_in_for_rewards():
    rows = [
        {"prompt_id": p, "group_id": p, "correct": c} for p, c in (("a", True), ("a", True), ("b", True), ("b", False))
    ]
    assert find(estimates_of(rows), "dead_groups").value == 0.5


def test_effective_samples_are_the_rollouts_in_live_groups():
    # One problem, two groups of unequal size: 2 of its 8 rollouts can teach anything.
    rows = [{"prompt_id": "a", "group_id": "g1", "reward": r} for r in (0.0, 1.0)]
    rows += [{"prompt_id": "a", "group_id": "g2", "reward": 1.0}] * 6
    numbers = estimates_of(rows + group("b", [0, 1]))
    assert find(numbers, "effective_samples").value == pytest.approx((2 / 8 + 1) / 2)
    assert find(numbers, "dead_groups").value == pytest.approx((1 / 2 + 0) / 2)


def test_one_group_id_in_two_steps_is_two_groups():
    rows = group("a", [0, 0], step=1) + group("a", [1, 1], step=2)
    counts = count_groups(evidence_of(rows).answers)
    assert counts.dead_N.tolist() == [1, 1]
    # Pooled they would have looked alive.
    assert count_groups(evidence_of(group("a", [0, 0]) + group("a", [1, 1])).answers).dead_N.tolist() == [0]


def random_rows(seed, steps=10, prompts=30, size=4):
    rng = np.random.default_rng(seed)
    return [
        {
            "prompt_id": f"p{p}", "group_id": f"g{p}", "step": step, "sample_index": i,
            "reward": float(rng.random() < (p + step) / (prompts + steps)),
            "n_tokens": int(rng.integers(10, 500)),
            "finish_reason": "length" if rng.random() < 0.3 else "stop",
        }
        for step in range(steps) for p in range(prompts) for i in range(size)
    ]  # fmt: skip


def by_pandas(rows):
    """Means over problems of their shares, for the last and the first two of ten steps."""
    frame = pd.DataFrame(rows)
    frame["truncated"] = (frame["finish_reason"] == "length").astype(float)
    shares = {}
    for window, steps in (("late", (8, 9)), ("early", (0, 1))):
        part = frame[frame["step"].isin(steps)]
        spread = part.groupby(["prompt_id", "step"])["reward"].agg(["min", "max", "size"])
        spread["dead"] = spread["min"] == spread["max"]
        shares[window] = {
            "dead_groups": spread["dead"].groupby("prompt_id").mean(),
            "effective_samples": 1 - spread["dead"].groupby("prompt_id").mean(),  # groups are equal in size
            "all_wrong": (spread["max"] == 0).groupby("prompt_id").mean(),
            "all_right": (spread["min"] == 1).groupby("prompt_id").mean(),
            "truncated": part.groupby("prompt_id")["truncated"].mean(),
            "length": part.groupby("prompt_id")["n_tokens"].mean(),
        }
    return shares


def test_windows_and_changes_are_pandas():
    rows = random_rows(0)
    numbers, shares = estimates_of(rows), by_pandas(rows)
    for name, late in shares["late"].items():
        early = shares["early"][name]
        assert find(numbers, name, window="late").value == pytest.approx(late.mean(), abs=1e-9)
        assert find(numbers, name, window="late").at["step"] == [8, 9]
        assert find(numbers, name, window="early").value == pytest.approx(early.mean(), abs=1e-9)
        change = find(numbers, f"{name}_change")
        assert change.value == pytest.approx((late - early).mean(), abs=1e-9)
        assert "same prompts" in change.how


def test_a_change_between_windows_of_different_problems_is_not_paired():
    early = [row for p in range(12) for row in group(f"a{p}", [0, 1], step=1)]
    late = [row for p in range(12) for row in group(f"b{p}", [1, 1] if p < 9 else [0, 1], step=2)]
    change = find(estimates_of(early + late), "dead_groups_change")
    assert change.value == pytest.approx(9 / 12)
    assert -1 <= change.low <= change.value <= change.high <= 1
    assert "12 and 12 prompts" in change.how


def test_train_and_evaluation_are_kept_apart():
    rows = group("a", [1, 1], split="train") + group("a", [0, 1], split="eval")
    numbers = estimates_of(rows)
    assert find(numbers, "dead_groups", split="train").value == 1
    assert find(numbers, "dead_groups", split="eval").value == 0


def test_against_a_baseline():
    rows = group("a", [1, 1]) + group("b", [0, 0]) + group("c", [0, 1])
    base = group("a", [0, 1]) + group("b", [0, 0]) + group("c", [0, 1])
    assert find(estimates_of(rows, baseline=base), "dead_groups_vs_baseline").value == pytest.approx(1 / 3)


LOOP = "I think it is 7. " + "wait, let me check that once more. " * 60
CLEAN = "Twelve apples and nine pears make 12 + 9 = 21 pieces of fruit in the bowl. The answer is 21."


def test_degenerate_texts_are_counted_among_those_that_have_a_text():
    rows = [{"prompt_id": p, "completion": text} for p, text in (("a", LOOP), ("a", CLEAN), ("a", None), ("b", CLEAN))]
    numbers = estimates_of(rows, "texts")
    assert find(numbers, "degenerate_loop").value == pytest.approx((1 / 2 + 0) / 2)
    assert find(numbers, "degenerate").value == pytest.approx((1 / 2 + 0) / 2)
    assert find(numbers, "degenerate_gibberish").value == 0


def from_log(metrics) -> Evidence:
    return collect(Run(Path("log"), RunInfo("trl"), read_metrics=lambda: iter(metrics)), ("texts", "metrics"))


def test_a_log_alone_gives_what_the_trainer_counted():
    metrics = [
        {
            "step": step,
            "group_zero_std_frac": 0.1 if step < 50 else 0.7,
            "length_mean": 100.0 + step,
            "truncated_frac": 0.25,
        }
        for step in range(100)
    ]
    numbers = estimate_health(from_log(metrics), baseline=None, options=Options())
    assert find(numbers, "dead_groups", window="late").value == pytest.approx(0.7)
    assert find(numbers, "dead_groups", window="early").value == pytest.approx(0.1)
    assert find(numbers, "dead_groups_change").value == pytest.approx(0.6)
    assert find(numbers, "length", window="late").value == pytest.approx(np.mean(range(180, 200)))
    assert find(numbers, "truncated", window="late").value == pytest.approx(0.25)
    assert "as logged" in find(numbers, "dead_groups", window="late").how


def test_a_logged_share_stays_a_share():
    rng = np.random.default_rng(0)
    metrics = [{"step": i, "group_zero_std_frac": float(rng.random() < 0.97)} for i in range(150)]
    found = find(estimate_health(from_log(metrics), baseline=None, options=Options()), "dead_groups", window="late")
    assert found.low < found.value <= found.high <= 1


def test_rollouts_come_before_the_log():
    run = Run(
        Path("r"), RunInfo("t"), evidence_of(group("a", [1, 1])).run.stream,
        read_metrics=lambda: iter([{"step": 1, "group_zero_std_frac": 0.2}]),
    )  # fmt: skip
    numbers = estimate_health(collect(run, ("metrics",)), baseline=None, options=Options())
    assert find(numbers, "dead_groups").value == 1


def test_what_is_missing_is_named():
    [number] = estimates_of([{"prompt_id": "p"}])
    assert number.value is None
    assert "reward, group_id" in number.missing
