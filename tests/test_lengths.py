"""Lengths of right and wrong rollouts, against pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from making import evidence_of, find

from equipoise.measures.evidence import Options
from equipoise.measures.lengths import estimate_lengths, length_edges


def lengths(rows):
    return estimate_lengths(evidence_of(rows), baseline=None, options=Options())


def made(n_problems=30, samples=8, seed=7):
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n_problems):
        for _ in range(samples):
            tokens = min(int(np.ceil(np.exp(rng.normal(5, 1)))), 400)
            rows.append(
                {
                    "prompt_id": f"p{i}",
                    "correct": bool(rng.random() < 0.6 and tokens < 400),
                    "n_tokens": tokens,
                    "finish_reason": "length" if tokens == 400 else "stop",
                }
            )
    return rows


def test_the_histogram_holds_every_rollout_once():
    rows = made()
    frame = pd.DataFrame(rows)
    for verdict, right in (("right", True), ("wrong", False)):
        mine = frame[frame.correct == right]
        shares = [n for n in lengths(rows) if n.name == "length_share" and n.at["verdict"] == verdict]
        for number in shares:
            low, high = number.at["tokens"]
            inside = mine.n_tokens.between(low, high, inclusive="left")
            assert number.value == pytest.approx(inside.mean(), abs=1e-12)
            assert number.at["count"] == inside.sum()
            assert number.n == mine.prompt_id.nunique()
        assert sum(n.at["count"] for n in shares) == len(mine)


def test_means_and_differences_against_pandas():
    rows = made()
    frame = pd.DataFrame(rows)
    numbers = lengths(rows)
    assert find(numbers, "length_right").value == pytest.approx(frame[frame.correct].n_tokens.mean())
    assert find(numbers, "length_wrong").value == pytest.approx(frame[~frame.correct].n_tokens.mean())
    means = frame.groupby(["prompt_id", "correct"]).n_tokens.mean().unstack().dropna()
    within = find(numbers, "length_wrong_minus_right")
    assert (within.value, within.n) == (pytest.approx((means[False] - means[True]).mean()), len(means))
    cut = frame.finish_reason == "length"
    assert find(numbers, "truncated").value == pytest.approx(cut.mean())
    assert find(numbers, "accuracy_truncated").value == pytest.approx(frame[cut].correct.mean())
    assert find(numbers, "accuracy_finished").value == pytest.approx(frame[~cut].correct.mean())


@pytest.mark.parametrize("tokens", [[3], [3, 4, 5], [0, 7], [1, 30_000], [10, 11, 500], list(range(100))])
def test_edges_are_whole_rise_and_hold_every_length(tokens):
    edges = length_edges(np.asarray(tokens, dtype=float))
    assert (np.diff(edges) >= 1).all()
    assert edges[0] <= min(tokens)
    assert max(tokens) < edges[-1]
    assert len(edges) <= 25


def test_wide_ranges_have_bins_that_grow():
    edges = length_edges(np.asarray([10.0, 10_000.0]))
    assert np.diff(edges)[-1] > 50 * np.diff(edges)[0]
    even = np.diff(length_edges(np.asarray([100.0, 579.0])))
    assert set(even.tolist()) == {20}


def test_unjudged_rollouts_are_neither():
    rows = [
        {"prompt_id": p, "correct": c, "n_tokens": t} for p, c, t in (("a", True, 5), ("a", None, 500), ("b", True, 7))
    ]
    numbers = lengths(rows)
    assert find(numbers, "length_right").value == 6
    assert not [n for n in numbers if n.at.get("verdict") == "wrong"]


def test_what_is_missing_is_named():
    (unjudged,) = lengths([{"prompt_id": "a", "n_tokens": 5}])
    assert "verdicts" in unjudged.missing
    numbers = lengths([{"prompt_id": "a", "correct": True}, {"prompt_id": "b", "correct": False}])
    assert find(numbers, "length_share").missing == "the number of tokens of a rollout (column n_tokens)"
    assert find(numbers, "truncated").missing == "why a rollout ended (column finish_reason)"
