"""Entropy against pandas, by hand, and from a trainer's log."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from token_runs import as_stored, evidence_of, find, stepped_rows

from equipoise.measures.arms import arms_of
from equipoise.measures.entropy import estimate_entropy, shannon
from equipoise.measures.evidence import Options
from equipoise.measures.histograms import Histogram, align
from equipoise.measures.intervals import ratio_of_sums
from equipoise.measures.logged import logged_estimates
from equipoise.measures.sums import Sums, difference, growth, mean_of
from equipoise.measures.texts import TextTable


def estimates_of(evidence, baseline=None):
    return estimate_entropy(evidence, baseline=baseline, options=Options())


def token_frame(rows) -> pd.DataFrame:
    """One line per token, as pandas would have it."""
    frame = pd.DataFrame(as_stored(rows).rows())
    frame["length"] = frame["entropies"].map(len)
    frame["place"] = frame["length"].map(lambda n: [10 * t // n for t in range(n)])
    return frame.explode(["entropies", "place"]).astype({"entropies": float})


def test_means_quantiles_and_positions_equal_pandas():
    rows = stepped_rows(0)
    tokens = token_frame(rows)
    late, early = tokens[tokens.step >= 8].entropies, tokens[tokens.step <= 1].entropies
    found = estimates_of(evidence_of(rows))
    assert find(found, "entropy", window="late", step=[8, 9]).value == pytest.approx(late.mean(), rel=1e-9)
    assert find(found, "entropy", window="early", step=[0, 1]).value == pytest.approx(early.mean(), rel=1e-9)
    assert find(found, "entropy_change").value == pytest.approx(late.mean() - early.mean(), rel=1e-9)
    assert find(found, "entropy_change_rel").value == pytest.approx(late.mean() / early.mean() - 1, rel=1e-9)
    for q in (50, 80, 95, 99):
        assert find(found, f"entropy_p{q}", window="late").value == pytest.approx(late.quantile(q / 100), rel=1e-9)
        assert find(found, f"entropy_p{q}", window="early").value == pytest.approx(early.quantile(q / 100), rel=1e-9)
    by_place = tokens[tokens.step >= 8].groupby("place").entropies.mean()
    for d in range(10):
        assert find(found, "entropy_position", window="late", position=d).value == pytest.approx(by_place[d], rel=1e-9)
    assert all(number.low < number.value < number.high for number in found if number.low is not None)
    assert find(found, "entropy", window="late").n == 6


def test_a_run_of_one_step_has_just_the_value():
    rows = stepped_rows(1, steps=1)
    found = estimates_of(evidence_of(rows))
    assert find(found, "entropy").value == pytest.approx(token_frame(rows).entropies.mean(), rel=1e-9)
    assert "window" not in find(found, "entropy").at
    assert not [number for number in found if "change" in number.name]


def test_conditions_are_kept_apart_and_rollouts_without_entropies_do_not_move_windows():
    rows = [row | {"split": "train"} for row in stepped_rows(2)]
    # Evaluation at other steps, and later steps that kept no tokens: neither may enter the training curve's windows.
    rows += [row | {"split": "eval", "step": 100 + row["step"]} for row in stepped_rows(3)]
    rows += [{"split": "train", "run_id": "r", "step": 500, "prompt_id": "p0"}]
    tokens = token_frame([row for row in rows if row.get("entropies")])
    found = estimates_of(evidence_of(rows))
    for split, first in (("train", 8), ("eval", 108)):
        part = tokens[(tokens.split == split) & (tokens.step >= first)].entropies
        assert find(found, "entropy", split=split, window="late").value == pytest.approx(part.mean(), rel=1e-9)
        assert find(found, "entropy_p80", split=split, window="late").value == pytest.approx(
            part.quantile(0.8), rel=1e-9
        )


def test_difference_from_a_baseline_is_over_the_problems_of_both():
    mine = stepped_rows(4, steps=1, prompts=6)
    base = [row | {"run_id": "base"} for row in stepped_rows(5, steps=1, prompts=9) if row["prompt_id"] != "p0"]
    found = estimates_of(evidence_of(mine), evidence_of(base))
    a, b = (
        token_frame([r for r in rows if r["prompt_id"] in {"p1", "p2", "p3", "p4", "p5"}]).entropies
        for rows in (mine, base)
    )
    assert find(found, "entropy_vs_baseline").value == pytest.approx(a.mean() - b.mean(), rel=1e-9)
    assert find(found, "entropy_vs_baseline_rel").value == pytest.approx(a.mean() / b.mean() - 1, rel=1e-9)
    assert find(found, "entropy_vs_baseline").n == 5
    nothing = estimates_of(evidence_of(mine), evidence_of([{"prompt_id": "p1", "run_id": "base"}]))
    assert "entropies" in find(nothing, "entropy_vs_baseline").missing


def test_planning_and_execution_by_hand():
    vocab = {0: "So", 1: " wait", 2: ".", 3: " x"}
    rows = [
        {"prompt_id": "a", "token_ids": [0, 1, 2], "completion": "So wait.", "entropies": [0.5, 2.0, 0.25]},
        {"prompt_id": "b", "token_ids": [1, 3, 3], "completion": " wait x x", "entropies": [1.0, 0.0, 0.125]},
        {"prompt_id": "b", "token_ids": [1, 3, 3], "completion": "another text", "entropies": [9.0, 9.0, 9.0]},
    ]
    found = estimates_of(evidence_of(rows, vocab=vocab))
    assert find(found, "entropy_planning").value == pytest.approx((2.0 + 1.0) / 2)
    assert find(found, "entropy_execution").value == pytest.approx((0.5 + 0.25 + 0.0 + 0.125) / 4)
    assert not [n for n in estimates_of(evidence_of(rows)) if n.name == "entropy_planning"]  # no vocabulary


def test_surprisal_is_the_mean_of_minus_log_p_of_one_source():
    rows = [
        {"prompt_id": "a", "logprobs_rollout": [-1.0, -3.0]},
        {"prompt_id": "b", "logprobs_rollout": [-0.5]},
        {"prompt_id": "b", "logprobs_train": [-50.0]},
    ]
    found = estimates_of(evidence_of(rows))
    assert find(found, "surprisal").value == pytest.approx(4.5 / 3)
    assert "entropies" in find(found, "entropy").missing


def test_provenance_is_said():
    rows = stepped_rows(6, steps=1)
    stated = evidence_of(rows, provenance={"entropies": {"estimator": "full softmax", "temperature": 0.6}})
    assert "entropies: estimator full softmax, temperature 0.6" in find(estimates_of(stated), "entropy").how
    assert "provenance not stated" in find(estimates_of(evidence_of(rows)), "entropy").how


# --- windows and cells ----------------------------------------------------------------------------------------------------


def test_a_long_run_has_windows_of_whole_cells_and_says_which():
    rows = [
        {"run_id": "r", "step": step, "prompt_id": f"p{p}", "entropies": [1.0 + step, 0.5, 0.0]}
        for step in range(300)
        for p in range(2)
    ]
    evidence = evidence_of(rows)
    assert evidence.tokens.histograms.width == 4  # 300 steps in at most 128 cells
    arm = arms_of(evidence.answers, None)[0]
    assert arm.late.at["step"] == [240, 299]
    assert align(arm, evidence).late.at["step"] == [240, 299]
    assert arm.early.at["step"] == [0, 59]
    found = estimates_of(evidence)
    frame = pd.DataFrame({"step": np.arange(300)})
    assert find(found, "entropy", window="late").value == pytest.approx(
        (frame[frame.step >= 240].step + 1.5).mean() / 3
    )
    shifted = evidence_of([row | {"step": row["step"] + 2} for row in rows])
    moved = align(arms_of(shifted.answers, None)[0], shifted)
    # Window 242 to 301 against cells 240-243, 244-247, …, 300-303: at least half of each of them is inside.
    assert moved.late.at["step"] == [240, 301]
    assert Histogram.of(shifted, moved.late.rows) is not None
    assert Histogram.of(shifted, moved.late.rows[:-1]) is None  # not whole cells


# --- intervals of functions of sums -----------------------------------------------------------------------------------------


def test_a_ratio_has_the_interval_of_ratio_of_sums():
    rng = np.random.default_rng(0)
    top, bottom, problem = rng.exponential(1, 60), rng.integers(1, 9, 60).astype(float), rng.integers(0, 12, 60)
    mine, theirs = mean_of(top, bottom, problem).interval("log"), ratio_of_sums(top, bottom, problem)
    assert (mine.value, mine.low, mine.high, mine.n) == pytest.approx(
        (theirs.value, theirs.low, theirs.high, theirs.n), rel=1e-9
    )


def test_what_two_windows_share_cancels_in_their_difference():
    rng = np.random.default_rng(1)
    level, n = rng.exponential(1, 30), np.ones(30)
    early, late = mean_of(level, n, np.arange(30)), mean_of(level + 0.1 + rng.normal(0, 1e-3, 30), n, np.arange(30))
    paired = difference(late, early).interval()
    apart = difference(late, mean_of(level, n, 100 + np.arange(30))).interval()
    assert paired.high - paired.low < 0.02 * (apart.high - apart.low)
    doubled = growth(mean_of(2 * level, n, np.arange(30)), early).interval("growth")
    assert doubled.value == pytest.approx(1.0)
    assert doubled.low is None  # exactly twice in every problem


def test_one_problem_has_no_interval():
    found = Sums(lambda a: a, (np.ones(3),), np.zeros(3)).interval()
    assert (found.low, found.n) == (None, 1)


# --- a trainer's log ----------------------------------------------------------------------------------------------------------


def test_a_logged_entropy_stands_in_and_is_labelled():
    metrics = [{"step": s, "entropy": 2.0 - 0.01 * s, "reward_mean": 0.1} for s in range(100)] + [
        {"step": 100, "entropy": None}
    ]
    found = estimates_of(evidence_of([{"prompt_id": "a", "step": 3}], metrics=metrics))
    late = find(found, "entropy", window="late", source="log")
    assert late.value == pytest.approx(2.0 - 0.01 * np.arange(80, 100).mean())
    assert late.at["step"] == [80, 99]
    assert late.how.startswith("as logged")
    assert find(found, "entropy_change").value == pytest.approx(-0.8)
    assert find(found, "entropy_change_rel").value == pytest.approx((2 - 0.895) / (2 - 0.095) - 1)


def test_a_log_is_not_mixed_with_measured_entropies():
    metrics = [{"step": s, "entropy": 7.0} for s in range(100)]
    assert not [n for n in estimates_of(evidence_of(stepped_rows(9), metrics=metrics)) if n.at.get("source") == "log"]
    one_step = estimates_of(evidence_of(stepped_rows(9, steps=1), metrics=metrics))
    assert len([n for n in one_step if n.name == "entropy" and n.at.get("source") == "log"]) == 2
    assert find([n for n in one_step if "source" not in n.at], "entropy").value < 3


def test_short_logs_have_no_interval_and_an_absent_one_is_missing():
    short = logged_estimates("entropy", [{"step": s, "entropy": 1.0 + 0.1 * (s % 2)} for s in range(49)])
    assert len(short) == 4
    assert all(number.low is None and "no interval" in number.how for number in short)
    assert logged_estimates("entropy", [{"step": 1}, {"entropy": 2.0}, {"step": 2, "entropy": math.nan}]) == []


def test_correlated_rows_widen_the_interval():
    rng = np.random.default_rng(2)
    noise = rng.normal(size=1000)
    walk = np.zeros(1000)
    for i in range(1, 1000):
        walk[i] = 0.9 * walk[i - 1] + noise[i]
    plain, correlated = (
        logged_estimates("entropy", [{"step": s, "entropy": 9 + v} for s, v in enumerate(x)])[0] for x in (noise, walk)
    )
    assert plain.width / 2 == pytest.approx(1.96 / math.sqrt(200), rel=0.15)
    # AR(1) with 0.9: noise of 1 becomes a spread of 1/√0.19, and the mean's variance is 1.9/0.1 times that of as many free rows.
    assert correlated.width / 2 == pytest.approx(1.96 / math.sqrt(200) / math.sqrt(0.19) * math.sqrt(19), rel=0.5)


# --- strategic grams ----------------------------------------------------------------------------------------------------------


def test_semantic_entropy_by_hand():
    assert shannon([1, 1, 1, 1]) == pytest.approx(math.log(4))
    assert shannon([5]) == 0
    assert shannon([3, 1, 0]) == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))


def test_semantic_entropy_follows_the_grams_of_the_window():
    evidence = evidence_of([{"prompt_id": "a", "step": step} for step in range(10)])
    table = TextTable(grams={0.0: Counter(wait=2), 1.0: Counter(wait=1), 8.0: Counter(wait=1), 9.0: Counter(hmm=1)})
    found = estimates_of(replace(evidence, texts=table))
    assert find(found, "semantic_entropy", window="early").value == 0
    assert find(found, "semantic_entropy", window="late").value == pytest.approx(math.log(2))
    assert find(found, "semantic_entropy", window="late").n == 2
