"""Steps of search: the best so far by a slow loop, a curve with a known ceiling, and a real multi-turn agent."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from making import evidence_of, find
from scipy.optimize import curve_fit

from equipoise.measures.budget import estimate_budget
from equipoise.measures.evidence import Options
from equipoise.measures.search_steps import best_so_far, estimate_search_steps, fit_saturation
from equipoise.measures.table import measure


def episode(prompt, rewards, sample=0, **cells):
    return [
        {"prompt_id": prompt, "sample_index": sample, "turn": t, "reward": r, **cells}
        for t, r in enumerate(rewards)
        if r is not None
    ]


def slow_curve(rows, turns):
    """Mean over a problem's episodes of the best reward up to each turn, 0 before the first."""
    problems = sorted({row["prompt_id"] for row in rows})
    curve = []
    for problem in problems:
        episodes = sorted({row["sample_index"] for row in rows if row["prompt_id"] == problem})
        best = [
            [
                max(
                    [
                        0.0,
                        *(
                            r["reward"]
                            for r in rows
                            if (r["prompt_id"], r["sample_index"]) == (problem, e) and r["turn"] <= t
                        ),
                    ]
                )
                for t in turns
            ]
            for e in episodes
        ]
        curve.append(np.mean(best, axis=0))
    return np.asarray(curve)


def test_best_so_far_is_that_of_a_slow_loop_whatever_the_order_of_rows():
    rng = np.random.default_rng(0)
    rows = []
    for p in range(8):
        for sample in range(3):
            length = rng.integers(1, 7)
            rewards = [None if rng.random() < 0.2 else float(rng.choice([0, 0.25, 0.5, 1])) for _ in range(length)]
            rows += episode(f"p{p}", [0.0, *rewards], sample)
    rng.shuffle(rows)
    curve = best_so_far(evidence_of(rows).answers)
    order = np.argsort([int(evidence_of(rows).answers.names["prompt_id"].texts[c][1:]) for c in curve.prompt_P])
    turns = sorted({row["turn"] for row in rows})
    assert curve.turn_T.tolist() == [t + 1 for t in turns]
    np.testing.assert_allclose(curve.best_PT[order], slow_curve(rows, turns))


def test_an_episode_that_ended_keeps_its_best_and_verdicts_come_before_rewards():
    rows = episode("p", [0.2, 0.7]) + episode("q", [0.1, 0.0, 0.4])
    np.testing.assert_allclose(best_so_far(evidence_of(rows).answers).best_PT, [[0.2, 0.7, 0.7], [0.1, 0.1, 0.4]])
    judged = [row | {"correct": row["reward"] > 0.3} for row in rows]
    curve = best_so_far(evidence_of(judged).answers)
    assert curve.score == "verdict"
    np.testing.assert_allclose(curve.best_PT, [[0, 1, 1], [0, 0, 1]])


def test_rows_without_a_sample_index_are_one_episode_after_the_other():
    rows = [
        {name: value for name, value in row.items() if name != "sample_index"}
        for row in episode("p", [0.0, 0.5]) + episode("p", [0.0, 0.0, 1.0])
    ]
    np.testing.assert_allclose(best_so_far(evidence_of(rows).answers).best_PT, [[0, 0.25, 0.75]])


def test_negative_rewards_start_from_the_worst():
    rows = episode("p", [None, -1.0, 0.5]) + episode("q", [-2.0, -2.0, -2.0])
    np.testing.assert_allclose(best_so_far(evidence_of(rows).answers).best_PT, [[-2, -1, 0.5], [-2, -2, -2]])


@pytest.mark.parametrize(("c", "d", "tau"), [(0.8, 0.7, 3.0), (0.5, 0.2, 1.0), (0.95, 1.1, 6.0)])
def test_the_fit_finds_a_known_curve(c, d, tau):
    t = np.arange(1.0, 16)
    found = fit_saturation(t, c - d * np.exp(-t / tau))
    assert found.ceiling == pytest.approx(c, abs=2e-4)
    assert found.drop == pytest.approx(d, rel=2e-3)
    assert found.half_life == pytest.approx(tau * math.log(2), rel=1e-3)
    assert found.explained == pytest.approx(1, abs=1e-6)


def test_the_fit_is_scipys_least_squares_on_a_noisy_curve():
    rng = np.random.default_rng(1)
    t = np.arange(1.0, 13)
    y = 0.7 - 0.6 * np.exp(-t / 2.5) + rng.normal(0, 0.01, len(t))
    (c, d, tau), _ = curve_fit(lambda t, c, d, tau: c - d * np.exp(-t / tau), t, y, p0=(0.7, 0.5, 2))
    found = fit_saturation(t, y)
    assert found.ceiling == pytest.approx(c, abs=1e-4)
    assert found.tau == pytest.approx(tau, rel=1e-3)
    assert found.drop == pytest.approx(d, rel=1e-3)


@pytest.mark.parametrize("curve", [[0.3] * 8, np.linspace(0.1, 0.8, 8), [0.1, 0.4, 0.5], [0.5, 0.5, 0.5, 0.5, 0.9]])
def test_a_curve_without_a_bend_has_no_ceiling(curve):
    assert fit_saturation(np.arange(1.0, len(curve) + 1), np.asarray(curve, dtype=float)) is None


def saturating_rows(rng, prompts=150, turns=12, ceiling=0.7, start=0.1, tau=2.5):
    """Solved by turn t with probability c_p − (c_p − s_p) exp(−(t−1)/τ), means `ceiling` and `start`."""
    rows = []
    for p in range(prompts):
        scale = rng.uniform(0.6, 1.4)
        by = scale * (ceiling - (ceiling - start) * np.exp(-np.arange(turns) / tau))
        draw = rng.random()
        rows += episode(f"p{p}", [float(draw < by[t]) for t in range(turns)])
    return rows


def test_estimates_of_a_synthetic_search():
    rows = saturating_rows(np.random.default_rng(2))
    numbers = estimate_search_steps(evidence_of(rows).answers, seed=0)
    solved = slow_curve(rows, range(12)).mean(axis=0)
    for t in range(12):
        assert find(numbers, "search_best", turn=t + 1).value == pytest.approx(solved[t])
        if t:
            assert find(numbers, "search_gain", turn=t + 1).value == pytest.approx(solved[t] - solved[t - 1])
    assert find(numbers, "search_ceiling").value == pytest.approx(0.7, abs=0.1)
    assert find(numbers, "search_half_life").value == pytest.approx(2.5 * math.log(2), rel=0.35)
    assert find(numbers, "search_best", turn=3).n == 150


def test_a_run_of_single_turns_has_no_search_steps():
    rows = [row for p in "pq" for row in episode(p, [1.0])]
    assert estimate_search_steps(evidence_of(rows).answers, seed=0) == []
    assert estimate_search_steps(evidence_of([{"prompt_id": "p", "reward": 1.0}]).answers, seed=0) == []


def test_the_budget_measure_appends_them():
    rows = saturating_rows(np.random.default_rng(3), prompts=20)
    numbers = estimate_budget(evidence_of(rows), baseline=None, options=Options())
    assert numbers[0].name == "overthinking_loss"  # no budgets here: said first
    assert find(numbers, "search_best", turn=12).value is not None


def test_each_agent_has_its_own_curve():
    rows = [row | {"run_id": "a"} for row in episode("p", [0.0, 1.0]) + episode("q", [0.0, 0.0])]
    rows += [row | {"run_id": "b"} for row in episode("p", [1.0, 0.0]) + episode("q", [0.0, 0.0])]
    numbers = estimate_search_steps(evidence_of(rows).answers, seed=0)
    assert find(numbers, "search_best", run_id="a", turn=1).value == 0
    assert find(numbers, "search_best", run_id="b", turn=1).value == 0.5
    assert find(numbers, "search_gain", run_id="a", turn=2).value == 0.5
    assert find(numbers, "search_ceiling", run_id="a").missing


def test_real_agents_against_pandas_and_scipy():
    path = Path(__file__).parent / "data" / "real" / "intercode_sql.parquet"
    rows = pd.read_parquet(path).sort_values("turn", kind="stable")
    rows["best"] = rows.groupby(["run_id", "prompt_id"])["reward"].cummax()
    best = rows.pivot_table(index=["run_id", "prompt_id"], columns="turn", values="best").ffill(axis=1)
    numbers = measure(path, "budget")["budget"]
    for model, curve in best.groupby("run_id").mean().iterrows():
        for turn, value in curve.items():
            assert find(numbers, "search_best", run_id=model, turn=turn + 1).value == pytest.approx(value, abs=1e-9)
    # gpt-4's curve bends late, text-davinci-003's early; the fits are scipy's.
    for model, guess in (("gpt-4", (0.8, 1, 3)), ("text-davinci-003", (0.2, 0.1, 1))):
        turn, mean = np.arange(1.0, 11), best.loc[model].mean().to_numpy()
        (c, _, tau), _ = curve_fit(lambda t, c, d, tau: c - d * np.exp(-t / tau), turn, mean, p0=guess)
        assert find(numbers, "search_ceiling", run_id=model).value == pytest.approx(c, abs=1e-3)
        assert find(numbers, "search_half_life", run_id=model).value == pytest.approx(tau * math.log(2), rel=1e-2)
