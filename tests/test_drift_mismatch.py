"""KL estimators and importance weights, against hand values, pandas and a case where the truth is known."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from token_runs import as_stored, evidence_of, find, stepped_rows

from equipoise.measures.drift import estimate_drift
from equipoise.measures.evidence import Options
from equipoise.measures.mismatch import estimate_mismatch


def drift_of(rows, baseline=None):
    against = None if baseline is None else evidence_of(baseline)
    return estimate_drift(evidence_of(rows), baseline=against, options=Options())


def mismatch_of(rows):
    return estimate_mismatch(evidence_of(rows), baseline=None, options=Options())


def token_frame(rows) -> pd.DataFrame:
    names = ["logprobs_rollout", "logprobs_train", "logprobs_ref"]
    frame = pd.DataFrame(as_stored(rows).rows()).rename_axis("rollout").reset_index()
    return frame.explode(names).astype(dict.fromkeys(names, float))


def test_drift_by_hand():
    # d = log 2 and 0: k1 = (log 2)/2, k3 = (1/2 − 1 + log 2)/2.
    rows = [{"prompt_id": "a", "logprobs_train": [math.log(0.5), -1.0], "logprobs_ref": [math.log(0.25), -1.0]}]
    found = drift_of(rows)
    assert find(found, "kl_k1").value == pytest.approx(math.log(2) / 2, rel=1e-6)
    assert find(found, "kl_k3").value == pytest.approx((math.log(2) - 0.5) / 2, rel=1e-6)
    assert find(found, "kl_k1_sequence").value == pytest.approx(math.log(2), rel=1e-6)


def test_drift_equals_pandas_in_both_windows():
    rows = stepped_rows(0)
    tokens = token_frame(rows)
    tokens["k1"] = tokens.logprobs_train - tokens.logprobs_ref
    tokens["k3"] = np.exp(-tokens.k1) - 1 + tokens.k1
    found = drift_of(rows)
    for window, part in (("late", tokens[tokens.step >= 8]), ("early", tokens[tokens.step <= 1])):
        for name in ("k1", "k3"):
            assert find(found, f"kl_{name}", window=window).value == pytest.approx(part[name].mean(), rel=1e-9)
            whole = part.groupby("rollout")[name].sum().mean()
            assert find(found, f"kl_{name}_sequence", window=window).value == pytest.approx(whole, rel=1e-9)
    late, early = (find(found, "kl_k3", window=window).value for window in ("late", "early"))
    assert find(found, "kl_k3_change").value == pytest.approx(late - early, rel=1e-9)
    assert find(found, "kl_k3", window="late").low > 0


def test_k1_and_k3_estimate_the_same_divergence():
    rng = np.random.default_rng(1)
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
    truth = float(p @ np.log(p / q))
    drawn = rng.choice(3, size=(200, 300), p=p)
    rows = [
        {"prompt_id": f"p{i}", "logprobs_train": np.log(p[t]).tolist(), "logprobs_ref": np.log(q[t]).tolist()}
        for i, t in enumerate(drawn)
    ]
    found = drift_of(rows)
    for name in ("kl_k1", "kl_k3"):
        number = find(found, name)
        assert number.low < truth < number.high
        assert number.n == 200


def test_the_trainers_log_probs_are_preferred_and_not_mixed():
    rows = [
        {"prompt_id": "a", "logprobs_train": [-1.0], "logprobs_rollout": [-9.0], "logprobs_ref": [-2.0]},
        {"prompt_id": "b", "logprobs_rollout": [-9.0], "logprobs_ref": [-2.0]},
    ]
    number = find(drift_of(rows), "kl_k1")
    assert (number.value, number.n) == (pytest.approx(1.0), 1)
    assert "logprobs_train against logprobs_ref" in number.how
    assert find(drift_of(rows[1:]), "kl_k1").value == pytest.approx(-7.0)


def test_drift_against_a_baseline():
    rows = stepped_rows(2, steps=1)
    moved = [row | {"logprobs_ref": (np.array(row["logprobs_ref"]) + 0.5).tolist()} for row in rows]
    number = find(drift_of(rows, moved), "kl_k1_vs_baseline")
    assert number.value == pytest.approx(0.5, rel=1e-5)


def test_an_infinite_divergence_is_not_a_number_to_show():
    rows = [
        {"prompt_id": p, "step": s, "logprobs_train": [-1.0, -2000.0], "logprobs_ref": [-1.5, -1.0]}
        for p in "ab"
        for s in (0, 1)
    ]
    number = find(drift_of(rows), "kl_k3", window="late")
    assert number.value is None
    assert "overflows" in number.missing
    assert find(drift_of(rows), "kl_k1", window="late").value == pytest.approx((0.5 - 1999) / 2)


def test_missing_columns_are_named():
    (only,) = drift_of([{"prompt_id": "a", "logprobs_train": [-1.0]}])
    assert only.value is None
    assert "logprobs_ref" in only.missing
    (only,) = mismatch_of([{"prompt_id": "a", "logprobs_train": [-1.0]}])
    assert "logprobs_rollout" in only.missing


def test_mismatch_equals_pandas():
    rows = stepped_rows(3)
    tokens = token_frame(rows)
    tokens["log_w"] = tokens.logprobs_train - tokens.logprobs_rollout
    tokens["w"] = np.exp(tokens.log_w)
    late = tokens[tokens.step >= 8]
    expected = {
        "mismatch_abs": late.log_w.abs().mean(),
        "mismatch_max": late.log_w.abs().max(),
        "mismatch_k1": -late.log_w.mean(),
        "mismatch_k3": (late.w - 1 - late.log_w).mean(),
        "mismatch_ess": late.w.sum() ** 2 / (len(late) * (late.w**2).sum()),
    }
    whole = np.exp(late.groupby("rollout").log_w.sum())
    expected["mismatch_ess_sequence"] = whole.sum() ** 2 / (len(whole) * (whole**2).sum())
    found = mismatch_of(rows)
    for name, value in expected.items():
        assert find(found, name, window="late").value == pytest.approx(value, rel=1e-9), name
    assert find(found, "mismatch_max", window="early").low is None
    assert find(found, "mismatch_abs_change").low is not None


def test_tail_of_the_ratios_by_hand():
    # Ratios 3, 1/3, 1.5 and 1: two of four are past a factor of two.
    log_w = np.log([3, 1 / 3, 1.5, 1])
    rows = [{"prompt_id": "a", "logprobs_rollout": [-5.0] * 4, "logprobs_train": (-5.0 + log_w).tolist()}]
    assert find(mismatch_of(rows), "mismatch_tail").value == 0.5


def test_equal_log_probs_have_no_gap_and_full_weight():
    rows = [{"prompt_id": p, "logprobs_rollout": [-1.0, -2.0], "logprobs_train": [-1.0, -2.0]} for p in "ab"]
    found = mismatch_of(rows)
    assert [find(found, f"mismatch_{name}").value for name in ("abs", "max", "k1", "k3", "tail")] == [0, 0, 0, 0, 0]
    assert find(found, "mismatch_ess").value == find(found, "mismatch_ess_sequence").value == 1
