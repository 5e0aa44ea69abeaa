"""The measures behind the figures over steps, against pandas, loops over tokens and arithmetic done by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from token_runs import as_stored, evidence_of, find, run_of, stepped_rows

from equipoise.measures.course import estimate_course
from equipoise.measures.distribution import estimate_distribution
from equipoise.measures.evidence import Options, collect
from equipoise.measures.exchange import estimate_exchange
from equipoise.measures.law import estimate_law
from equipoise.measures.log_curves import log_curve, moved_settings
from equipoise.measures.mismatch_course import estimate_mismatch_course
from equipoise.measures.positions import estimate_positions
from equipoise.measures.table import find_measure

NEEDS = ("tokens", "metrics")


def estimates_of(estimate, evidence):
    return estimate(evidence, baseline=None, options=Options())


def rewarded(rows: list[dict], seed: int = 0) -> list[dict]:
    rng = np.random.default_rng(seed)
    return [row | {"reward": float(rng.random() < 0.4)} for row in rows]


def token_frame(rows: list[dict]) -> pd.DataFrame:
    """One row per token, as stored."""
    parts = []
    for row in as_stored(rows).rows():
        length = len(row["entropies"])
        part = {"H": row["entropies"], "place": [10 * t // length for t in range(length)]}
        part["gap"] = np.abs(np.subtract(row["logprobs_train"], row["logprobs_rollout"]))
        parts.append(pd.DataFrame(part).assign(step=row["step"], prompt=row["prompt_id"]))
    return pd.concat(parts)


def jackknife(values: pd.Series, problems: pd.Series, of) -> float:
    """Standard error of of(values) by leaving out one problem at a time."""
    names = problems.unique()
    without = np.asarray([of(values[problems != name]) for name in names])
    n = len(names)
    return math.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())


# --- entropy and reward by step ---------------------------------------------------------------------------------------------


def test_entropy_and_reward_at_every_step_equal_pandas():
    rows = rewarded(stepped_rows(0, prompts=20))
    found = estimates_of(estimate_course, evidence_of(rows))
    tokens, rollouts = token_frame(rows), pd.DataFrame(rows)
    for step, part in tokens.groupby("step"):
        number = find(found, "entropy_at_step", step=step)
        assert number.value == pytest.approx(part.H.mean(), rel=1e-9)
        assert number.n == 20
        # log θ ± t s/θ: the geometric middle is θ itself, and half the width is t s/θ with t of 19 degrees or fewer.
        half = math.log(number.high / number.low) / 2
        assert number.value == pytest.approx(math.sqrt(number.low * number.high), rel=1e-9)
        assert half >= 2.09 * jackknife(part.H, part.prompt, np.mean) / number.value
        by_prompt = part.groupby("prompt").H.mean()
        assert find(found, "entropy_at_step_p5", step=step).value == pytest.approx(by_prompt.quantile(0.05))
        assert find(found, "entropy_at_step_p95", step=step).value == pytest.approx(by_prompt.quantile(0.95))
    for step, part in rollouts.groupby("step"):
        number = find(found, "reward_at_step", step=step)
        assert number.value == pytest.approx(part.reward.mean())
        assert 0 <= number.low < number.value < number.high <= 1
        means = part.groupby("prompt_id").reward.mean()
        assert find(found, "reward_at_step_p95", step=step).value == pytest.approx(means.quantile(0.95))


def test_conditions_have_their_own_curves_and_few_problems_no_spread():
    rows = [row | {"split": split} for split in ("train", "test") for row in rewarded(stepped_rows(1, prompts=6))]
    found = estimates_of(estimate_course, evidence_of(rows))
    for split in ("train", "test"):
        mine = [row for row in rows if row["split"] == split and row["step"] == 3]
        expected = np.mean([row["reward"] for row in mine])
        assert find(found, "reward_at_step", split=split, step=3).value == pytest.approx(expected)
    assert not [number for number in found if "_p" in number.name]


def test_rewards_below_0_are_not_held_between_0_and_1():
    rows = [{"prompt_id": f"p{i}", "step": 0, "reward": -1.0 + 0.1 * i} for i in range(8)]
    number = find(estimates_of(estimate_course, evidence_of(rows)), "reward_at_step")
    assert number.value == pytest.approx(-0.65)
    assert number.low < -0.65 < number.high


def test_a_log_gives_curves_and_the_settings_that_moved():
    log = [
        {"step": s, "entropy": 0.5 - 0.1 * s, "reward": 0.1 * s, "entropy_bonus.coef": 0.001 * s, "seconds/a.b": 1.0}
        for s in range(3)
    ]
    log.append({"step": 3, "eval/pass@1.5": 0.5})  # a row of an evaluation has none of them
    evidence = collect(run_of([{"prompt_id": "a"}], metrics=log), NEEDS)
    found = estimates_of(estimate_course, evidence)
    assert [n.value for n in found if n.name == "entropy_at_step"] == pytest.approx([0.5, 0.4, 0.3])
    assert [n.value for n in found if n.name == "reward_at_step"] == pytest.approx([0.0, 0.1, 0.2])
    moved = [n for n in found if n.name == "setting_at_step"]
    assert [(n.at["setting"], n.at["step"]) for n in moved] == [("entropy_bonus.coef", s) for s in range(3)]
    assert [n.value for n in moved] == pytest.approx([0.0, 0.001, 0.002])
    assert all(n.low is None and "no interval" in n.how for n in found)


def test_a_long_log_is_joined_to_stretches():
    log = [{"step": s, "entropy": float(s)} for s in range(250)]
    found = estimates_of(estimate_course, collect(run_of([{"prompt_id": "a"}], metrics=log), NEEDS))
    points = [n for n in found if n.name == "entropy_at_step"]
    assert len(points) <= 100
    assert (points[0].at["step"], points[0].value, points[0].n) == ([0, 2], 1.0, 3)  # the mean of 0, 1 and 2
    assert sum(n.n for n in points) == 250


def test_log_rows_that_lack_a_number_or_hold_none_are_left_out():
    log = [
        {"step": 2, "entropy": 0.2, "reward_mean": 1.0},
        {"step": 0, "entropy": 0.4, "reward": 0.5},
        {"step": 1, "entropy": math.nan, "reward": 0.5},
        {"step": 3, "entropy": "0.1", "reward": 0.5},
        {"step": 4, "entropy": True, "reward": 0.5},
        {"entropy": 0.3, "reward": 0.5},
    ]
    step, entropy, reward = log_curve(log, "entropy", "reward")
    assert (step.tolist(), entropy.tolist(), reward.tolist()) == ([0, 2], [0.4, 0.2], [0.5, 1.0])
    assert moved_settings([{"a.b": 1.0, "c/d.e": 1.0, "coef": 0.1, "f.g": "x", "pass@0.5": 1.0}]) == ["a.b", "coef"]


def test_a_run_without_entropy_or_reward_says_what_would_supply_them():
    found = estimates_of(estimate_course, evidence_of([{"prompt_id": "a"}]))
    assert [(n.name, n.value) for n in found] == [("entropy_at_step", None), ("reward_at_step", None)]
    assert "column entropies" in found[0].missing
    assert "columns step and reward" in found[1].missing


# --- trainer against sampler ----------------------------------------------------------------------------------------------------


def test_mismatch_at_every_step_equals_pandas():
    rows = stepped_rows(2)
    found = estimates_of(estimate_mismatch_course, evidence_of(rows))
    for step, part in token_frame(rows).groupby("step"):
        assert find(found, "mismatch_abs_at_step", step=step).value == pytest.approx(part.gap.mean(), rel=1e-6)
        assert find(found, "mismatch_max_at_step", step=step).value == pytest.approx(part.gap.max(), rel=1e-6)
        tail = find(found, "mismatch_tail_at_step", step=step)
        assert tail.value == pytest.approx((part.gap > math.log(2)).mean())
    nothing = estimates_of(estimate_mismatch_course, evidence_of([{"prompt_id": "a"}]))
    assert [n.value for n in nothing] == [None]
    assert "logprobs_train" in nothing[0].missing


def test_a_logged_mismatch_stands_apart():
    log = [{"step": 5, "mismatch": 0.25}]
    (only,) = estimates_of(estimate_mismatch_course, collect(run_of([{"prompt_id": "a"}], metrics=log), NEEDS))
    assert (only.name, only.value, only.at["step"]) == ("mismatch_logged_at_step", 0.25, 5)


# --- distribution and place -----------------------------------------------------------------------------------------------------


def test_bins_of_every_stage_equal_a_histogram_of_the_tokens():
    rows = stepped_rows(7, prompts=8)
    found = estimates_of(estimate_distribution, evidence_of(rows))
    tokens = token_frame(rows)
    stages = {tuple(n.at["step"]) for n in found}
    assert stages == {(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)}  # ten steps, at most six stages
    for first, last in stages:
        part = tokens[(tokens.step >= first) & (tokens.step <= last)]
        mine = [n for n in found if n.at["step"] == [first, last]]
        edges = [*(n.at["from"] for n in mine), math.inf]
        assert mine[-1].at["to"] is None
        assert [n.at["to"] for n in mine[:-1]] == edges[1:-1]
        counts, _ = np.histogram(part.H, bins=edges)
        assert [n.value for n in mine] == pytest.approx((counts / len(part)).tolist(), abs=1e-12)
        assert sum(n.value for n in mine) == pytest.approx(1)
        for number, count in zip(mine, counts, strict=True):
            assert (number.low is None) == (count == 0) or "too few" in number.how


def test_the_interval_of_a_bin_is_over_problems_not_tokens():
    """Ten problems whose tokens are all above or all below 1 nat: n is ten, however long they are."""
    rows = [{"prompt_id": f"p{p % 10}", "entropies": [0.1 if p % 10 < 5 else 2.0] * 100} for p in range(40)]
    found = estimates_of(estimate_distribution, evidence_of(rows))
    (low,) = (n for n in found if n.at["from"] <= 0.1 and n.at["to"] is not None and n.at["to"] > 0.1)
    assert (low.value, low.n) == (0.5, 10)
    assert low.low < 0.25  # over 4,000 independent tokens it would be 0.48
    assert low.high > 0.75
    assert "step" not in low.at


def test_a_share_of_tokens_stays_below_one_and_stages_are_at_most_six():
    """Nine problems of twelve have all their tokens in one bin, three a tenth: on a log scale the interval would pass 1."""
    rows = [
        {"prompt_id": f"p{p}", "entropies": [0.1] * (1 if p < 3 else 10) + [2.0] * (9 if p < 3 else 0)}
        for p in range(12)
    ]
    found = estimates_of(estimate_distribution, evidence_of(rows))
    most = max(found, key=lambda n: n.value)
    assert most.value == pytest.approx(0.775)
    assert 0.775 < most.high <= 1
    long = estimates_of(estimate_distribution, evidence_of(stepped_rows(1, steps=14, prompts=2, samples=1, length=8)))
    assert {tuple(n.at["step"]) for n in long} == {(0, 2), (3, 5), (6, 8), (9, 11), (12, 13)}


def test_place_by_step_equals_pandas():
    rows = stepped_rows(8)
    found = estimates_of(estimate_positions, evidence_of(rows))
    expected = token_frame(rows).groupby(["step", "place"]).H.mean()
    assert {(n.at["step"], n.at["position"]): n.value for n in found} == pytest.approx(expected.to_dict(), rel=1e-9)
    assert all(n.low < n.value < n.high for n in found)


def test_a_tenth_without_tokens_is_left_out():
    found = estimates_of(estimate_positions, evidence_of([{"prompt_id": "a", "step": 0, "entropies": [0.5, 1.0]}]))
    assert {n.at["position"]: n.value for n in found} == {0: 0.5, 5: 1.0}


# --- the exchange of entropy for reward -----------------------------------------------------------------------------------------


def law_log(rows: int = 80, seed: int = 3) -> list[dict]:
    """R = −0.6 exp(H) + 1.3 with noise, H from 0.7 to 0.1."""
    rng = np.random.default_rng(seed)
    H = np.linspace(0.7, 0.1, rows) + rng.normal(0, 0.005, rows)
    R = 1.3 - 0.6 * np.exp(H) + rng.normal(0, 0.01, rows)
    return [{"step": s, "entropy": h, "reward_mean": r} for s, (h, r) in enumerate(zip(H, R, strict=True))]


def test_points_line_truth_and_rivals_of_a_run_that_the_law_fits():
    log = law_log()
    evidence = collect(run_of([{"prompt_id": "a"}], metrics=log), NEEDS)
    found = estimates_of(estimate_exchange, evidence)
    x, R = np.exp([row["entropy"] for row in log]), np.asarray([row["reward_mean"] for row in log])
    assert [n.value for n in found if n.name == "exchange_exp_entropy"] == pytest.approx(x.tolist())
    assert [n.value for n in found if n.name == "exchange_reward"] == pytest.approx(R.tolist())
    slope, constant = np.polyfit(x, R, 1)
    line = [n for n in found if n.name == "exchange_fit"]
    assert [n.value for n in line] == pytest.approx([slope * n.at["exp_entropy"] + constant for n in line])
    assert line[-1].at["exp_entropy"] == pytest.approx(x.max())
    assert all(n.low < n.value < n.high for n in line)
    assert any(n.low < -0.6 * n.at["exp_entropy"] + 1.3 < n.high for n in line)
    # At exp(H) = 1 the line is the ceiling that `law` gives, interval and all.
    ceiling = find(estimates_of(estimate_law, evidence), "law_ceiling")
    assert line[0].at["exp_entropy"] == 1
    assert (line[0].value, line[0].low, line[0].high) == pytest.approx((ceiling.value, ceiling.low, ceiling.high))
    assert find(found, "exchange_truth").value == pytest.approx(R[-8:].mean())
    rival = find(found, "exchange_rival", share=0.5, model="line in H")
    H = np.log(x)
    assert rival.value == pytest.approx(np.polyval(np.polyfit(H[:40], R[:40], 1), H[-8:]).mean())


def test_a_run_that_the_law_refuses_has_points_and_no_line():
    log = [{"step": s, "entropy": 0.5 - 0.01 * s, "reward": (s * 7 % 10) / 10} for s in range(30)]  # R² is near 0
    found = estimates_of(estimate_exchange, collect(run_of([{"prompt_id": "a"}], metrics=log), NEEDS))
    assert len([n for n in found if n.name == "exchange_reward"]) == 30
    assert not [n for n in found if n.name == "exchange_fit"]


def test_no_curve_and_no_entropy_are_said():
    (only,) = estimates_of(estimate_exchange, evidence_of([{"prompt_id": "a"}]))
    assert "mean reward per step" in only.missing
    log = [{"step": s, "entropy": -1.0, "reward": 0.5} for s in range(30)]
    (wrong,) = estimates_of(estimate_exchange, collect(run_of([{"prompt_id": "a"}], metrics=log), NEEDS))
    assert "turn the sign" in wrong.missing


@pytest.mark.parametrize("name", ["course", "exchange", "distribution", "positions", "mismatch_course"])
def test_each_is_in_the_table(name):
    assert callable(find_measure(name).load())
