"""Confidences of several sources, against loops, pandas and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from making import evidence_of, find, pool
from sklearn.metrics import brier_score_loss, roc_auc_score

from equipoise.measures.calibration import Ranked
from equipoise.measures.confidence import COVERAGES, MISSING, agreement_of, estimate_confidence
from equipoise.measures.coverage_curve import MIN_RARER, coverage_curve, selective_accuracy
from equipoise.measures.evidence import Options


def confidence(rows, *needs, **options):
    return estimate_confidence(evidence_of(rows, *needs), baseline=None, options=Options(**options))


def stated(n_problems=40, samples=6, seed=4):
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n_problems):
        rate = rng.beta(1, 1)
        for _ in range(samples):
            q = round(float(np.clip(rate + rng.normal(0, 0.2), 0, 1)), 2)
            rows.append({"prompt_id": f"p{i}", "correct": bool(rng.random() < rate), "confidence": q})
    return rows


def test_agreement_is_the_share_of_the_other_answers():
    table = evidence_of([*pool("a", ["x", "x", "y", None]), *pool("b", ["x"]), *pool("c", ["z", "z"])]).answers
    assert agreement_of(table) == pytest.approx([0.5, 0.5, 0, math.nan, math.nan, 1, 1], nan_ok=True)


def test_reliability_against_pandas():
    rows = stated()
    frame = pd.DataFrame(rows)
    # Edges as a person writes them: 0.29 is in [0.2, 0.3).
    frame["bin"] = pd.cut(frame.confidence, [i / 10 for i in range(10)] + [1.01], right=False, labels=range(10))
    bins = [n for n in confidence(rows) if n.name == "reliability" and n.at["source"] == "stated"]
    assert [n.at["bin"][0] for n in bins] == [b / 10 for b in sorted(frame.bin.unique())]
    for number in bins:
        mine = frame[frame.bin == round(10 * number.at["bin"][0])]
        assert number.value == pytest.approx(mine.correct.mean(), abs=1e-12)
        assert number.at["confidence"] == pytest.approx(mine.confidence.mean(), abs=1e-12)
        assert (number.at["count"], number.n) == (len(mine), mine.prompt_id.nunique())


def test_scores_against_scikit_learn():
    rows = stated()
    frame = pd.DataFrame(rows)
    numbers = confidence(rows)
    assert find(numbers, "brier").value == pytest.approx(brier_score_loss(frame.correct, frame.confidence))
    assert find(numbers, "auroc").value == pytest.approx(roc_auc_score(frame.correct, frame.confidence))
    bins = frame.groupby(np.searchsorted(np.arange(1, 10) / 10, frame.confidence, side="right"))
    ece = sum(len(b) / len(frame) * abs(b.correct.mean() - b.confidence.mean()) for _, b in bins)
    assert find(numbers, "ece").value == pytest.approx(ece)
    assert find(numbers, "ece").low is None


def test_tokens_give_two_more_sources():
    rows = [
        {"prompt_id": p, "correct": c, "logprobs_rollout": [math.log(a), math.log(b)], "entropies": [h, h]}
        for p, c, a, b, h in (("a", True, 0.5, 0.5, 1.0), ("b", False, 0.25, 1.0, 2.0), ("c", True, 0.9, 0.4, 0.5))
    ]
    numbers = confidence(rows, "answers", "tokens")
    likelihood = [n.at["confidence"] for n in numbers if n.name == "reliability" and n.at["source"] == "likelihood"]
    # Geometric means: 0.5 and 0.5 fall in one bin, √0.36 = 0.6 in the next but for rounding.
    assert sorted(likelihood) == pytest.approx([0.5, 0.6], abs=1e-6)
    entropy = [n.at["confidence"] for n in numbers if n.name == "reliability" and n.at["source"] == "low entropy"]
    assert sorted(entropy) == pytest.approx([math.exp(-2), math.exp(-1), math.exp(-0.5)], abs=1e-3)


def test_the_curve_is_the_mean_of_the_surest_in_every_order_of_ties():
    # Confidence 3: one right. 2: one right, one wrong, tied. 1: two wrong.
    right_L, all_L = np.asarray([1.0, 1.0, 0.0]), np.asarray([1.0, 2.0, 2.0])
    found = selective_accuracy(right_L, all_L, np.asarray([0.2, 0.4, 0.6, 0.8, 1.0]))
    # Of two kept, the second is right in half of the orders: (1 + ½)/2.
    assert found == pytest.approx([1, 0.75, 2 / 3, 2 / 4, 2 / 5])


def test_selective_accuracy_against_sorting():
    rng = np.random.default_rng(6)
    rows = [
        {"prompt_id": f"p{i % 50}", "correct": bool(rng.random() < q), "confidence": q}
        for i, q in enumerate(rng.permutation(400) / 399)
    ]
    frame = pd.DataFrame(rows).sort_values("confidence", ascending=False)
    numbers = [n for n in confidence(rows) if n.name == "selective_accuracy"]
    assert [n.at["coverage"] for n in numbers] == COVERAGES.tolist()
    for number in numbers:
        kept = frame.head(round(number.at["coverage"] * 400))
        assert number.value == pytest.approx(kept.correct.mean(), abs=1e-12)
        assert number.n == 50
    gain = find(confidence(rows), "selective_gain")
    assert gain.value == pytest.approx(frame.head(200).correct.mean() - frame.correct.mean(), abs=1e-12)


def test_resampled_bounds_against_a_slow_bootstrap():
    """Whole problems drawn again, every draw sorted anew: the same quantiles up to the error of two sets of draws."""
    rows = pd.DataFrame(stated(seed=9))
    codes = rows.prompt_id.astype("category").cat.codes.to_numpy()
    ranked = Ranked.of(rows.confidence.to_numpy(), rows.correct.to_numpy(float), codes)
    curve = coverage_curve(ranked, np.asarray([0.5]), seed=1)
    rng, slow, gains = np.random.default_rng(8), [], []
    for _ in range(800):
        drawn = np.concatenate([np.flatnonzero(codes == p) for p in rng.integers(0, 40, 40)])
        part = rows.iloc[drawn].sample(frac=1, random_state=int(rng.integers(1 << 30)))
        kept = part.sort_values("confidence", ascending=False, kind="stable").head(len(part) // 2)
        slow.append(kept.correct.mean())
        gains.append(kept.correct.mean() - part.correct.mean())
    for (found,), drawn_again in ((curve.at_C, slow), (curve.gain_C, gains)):
        low, high = np.quantile(drawn_again, [0.025, 0.975])
        assert found.low == pytest.approx(low, abs=0.03)
        assert found.high == pytest.approx(high, abs=0.03)


def test_many_levels_drawn_together_hardly_move_the_bounds(monkeypatch):
    rng = np.random.default_rng(10)
    q = rng.random(2000)
    ranked = Ranked.of(q, (rng.random(2000) < q).astype(float), np.repeat(np.arange(200), 10))
    exact = {}
    for most in (5000, 256):
        monkeypatch.setattr("equipoise.measures.coverage_curve.MOST_LEVELS", most)
        exact[most] = coverage_curve(ranked, np.asarray([0.3, 0.5]), seed=0).at_C
    for fine, coarse in zip(exact[5000], exact[256], strict=True):
        assert fine.value == coarse.value
        assert (coarse.low, coarse.high) == pytest.approx((fine.low, fine.high), abs=0.005)


def test_few_rare_verdicts_have_no_interval():
    # The surest tenth holds wrong replies of fewer problems than an interval needs.
    rows = [
        {"prompt_id": f"p{i}", "correct": i >= 3, "confidence": 1 - i / 1000 if i < 50 else 0.1 * (i % 2)}
        for i in range(100)
    ]
    few = find(confidence(rows), "selective_accuracy", coverage=0.1)
    assert few.value == pytest.approx(0.7)
    assert few.low is None
    assert f"3 problems have a reply of the rarer verdict among those kept, it needs {MIN_RARER}" in few.how


def test_a_bin_that_is_nearly_all_right_over_few_problems_has_no_interval():
    rows = [{"prompt_id": f"p{i % 8}", "correct": i % 10 > 0, "confidence": 0.95} for i in range(80)]
    (number,) = [n for n in confidence(rows) if n.name == "reliability"]
    assert number.value == pytest.approx(72 / 80)
    assert number.low is None
    assert "no interval: 8 problems are too few so close to 1" in number.how


def test_what_is_missing_is_named():
    (none,) = confidence([{"prompt_id": "a", "correct": True}, {"prompt_id": "b", "correct": False}])
    assert (none.value, none.missing) == (None, MISSING)
    (unjudged,) = confidence([{"prompt_id": "a", "confidence": 0.5}])
    assert "verdicts" in unjudged.missing
