"""Forking tokens: exact against sorted tokens, and told apart: narrowing of routine tokens from collapse of the forks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from token_runs import as_stored, evidence_of, find, stepped_rows

from equipoise.measures.evidence import Options
from equipoise.measures.excess import KNOTS, count_above, curve_of, excess_at, top_mean_of
from equipoise.measures.forks import estimate_forks
from equipoise.measures.histograms import Histogram


def estimates_of(evidence, baseline=None):
    return estimate_forks(evidence, baseline=baseline, options=Options())


def sorted_tokens(rows, keep=lambda row: True) -> np.ndarray:
    return np.sort(np.concatenate([row["entropies"] for row in as_stored(rows).rows() if keep(row)]).astype(float))[
        ::-1
    ]


def slow_forks(H: np.ndarray) -> tuple[float, float, float]:
    """(fork mean, routine mean, share), the token at the border counted for its part."""
    wanted = 0.2 * len(H)
    whole = int(wanted)
    top = H[:whole].sum() + (wanted - whole) * (H[whole] if whole < len(H) else 0)
    return top / wanted, (H.sum() - top) / (len(H) - wanted), top / H.sum()


def test_values_equal_sorted_tokens():
    rows = stepped_rows(0)
    found = estimates_of(evidence_of(rows))
    windows = {"late": lambda row: row["step"] >= 8, "early": lambda row: row["step"] <= 1}
    values = {}
    for window, keep in windows.items():
        H = sorted_tokens(rows, keep)
        values[window] = slow_forks(H)
        for name, expected in zip(("fork_entropy", "routine_entropy", "fork_share"), values[window], strict=True):
            number = find(found, name, window=window)
            assert number.value == pytest.approx(expected, rel=1e-9)
            if name == "fork_share":
                assert number.low is None  # six problems are too few for its interval
            else:
                assert number.low < number.value < number.high
        assert find(found, "fork_threshold", window=window).value == pytest.approx(np.quantile(H, 0.8), rel=1e-9)
    late, early = values["late"], values["early"]
    assert find(found, "fork_entropy_change").value == pytest.approx(late[0] - early[0], abs=1e-9)
    assert find(found, "fork_entropy_change_rel").value == pytest.approx(late[0] / early[0] - 1, abs=1e-9)
    assert find(found, "routine_entropy_change_rel").value == pytest.approx(late[1] / early[1] - 1, abs=1e-9)
    assert find(found, "fork_share_change").value == pytest.approx(late[2] - early[2], abs=1e-9)


def test_healthy_narrowing_and_collapse_are_told_apart():
    # The mean entropy falls in both. A quarter of the tokens are forks.
    narrowing = estimates_of(evidence_of(stepped_rows(1, prompts=12, routine=0.1)))
    collapse = estimates_of(evidence_of(stepped_rows(1, prompts=12, routine=0.1, fork=0.1)))
    kept = find(narrowing, "fork_entropy_change_rel")
    assert kept.low > -0.1
    assert find(narrowing, "routine_entropy_change_rel").high < -0.2
    lost = find(collapse, "fork_entropy_change_rel")
    assert lost.high < -0.8
    assert find(collapse, "routine_entropy_change_rel").high < -0.8


def test_the_share_has_an_interval_from_a_hundred_problems():
    found = estimates_of(evidence_of(stepped_rows(9, steps=1, prompts=100, samples=1)))
    share = find(found, "fork_share")
    assert share.low < share.value < share.high


def test_near_zero_tokens_do_not_disturb_the_quantile():
    rows = [
        {"prompt_id": f"p{p}", "step": step, "entropies": [0.0] * 85 + [1e-5] * 5 + [1.0] * 10}
        for p in range(4)
        for step in range(2)
    ]
    found = estimates_of(evidence_of(rows))
    # A tenth of the tokens carry everything: half of the top fifth.
    assert find(found, "fork_entropy", window="late").value == pytest.approx(0.5, abs=1e-5)
    assert find(found, "fork_share", window="late").value == pytest.approx(1.0, abs=1e-4)
    nothing = estimates_of(evidence_of([{"prompt_id": "a", "entropies": [0.0] * 10}]))
    assert not [n for n in nothing if n.name == "fork_entropy"]


def test_no_entropies_is_one_missing_estimate():
    (only,) = estimates_of(evidence_of([{"prompt_id": "a"}]))
    assert (only.name, only.value) == ("fork_entropy", None)
    assert "entropies" in only.missing


# --- the excess curve -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.01, 0.1, 0.6, 2.0])
def test_the_excess_curve_gives_the_top_mean_within_half_a_percent(scale):
    rng = np.random.default_rng(2)
    H = np.where(rng.random(40_000) < 0.5, rng.exponential(1e-3, 40_000), scale * rng.gamma(0.8, 1, 40_000)).astype(
        np.float16
    )
    evidence = evidence_of(
        [{"prompt_id": f"p{i}", "entropies": part.tolist()} for i, part in enumerate(H.reshape(100, 400))]
    )
    rows = np.arange(100)
    curve = curve_of(evidence.tokens, rows)
    threshold, top = top_mean_of(curve, H.size, 0.2)
    exact = np.sort(H.astype(float))[::-1][:8000].mean()
    assert top == pytest.approx(exact, rel=5e-3)
    assert Histogram.of(evidence, rows).top_mean(0.2) == pytest.approx(exact, rel=1e-9)
    loop = [np.maximum(part.astype(float) - threshold, 0).sum() for part in H.reshape(100, 400)]
    assert excess_at(curve, threshold).sum() == pytest.approx(sum(loop), rel=0.05)
    assert count_above(curve, threshold).sum() == pytest.approx(np.count_nonzero(threshold < H), rel=0.25)


def test_the_excess_curve_is_exact_at_its_knots():
    evidence = evidence_of([{"prompt_id": "a", "entropies": [0.25, 1.5, 3.0]}])
    curve = curve_of(evidence.tokens, np.array([0]))
    for knot in KNOTS:
        expected = sum(max(H - knot, 0) for H in (0.25, 1.5, 3.0))
        assert excess_at(curve, float(knot))[0] == pytest.approx(expected, abs=1e-6)


def test_baseline_over_common_problems():
    mine = stepped_rows(3, steps=1, prompts=8, samples=6, fork=1.0)
    base = [
        row | {"run_id": "base", "entropies": (2 * np.array(row["entropies"])).tolist()}
        for row in stepped_rows(4, steps=1, prompts=8, samples=6)
    ]
    all_common = estimates_of(evidence_of(mine), evidence_of(base))
    a, b = slow_forks(sorted_tokens(mine)), slow_forks(sorted_tokens(base))
    assert find(all_common, "fork_entropy_vs_baseline_rel").value == pytest.approx(a[0] / b[0] - 1, rel=1e-9)
    some = [row for row in base if row["prompt_id"] in ("p2", "p3", "p4", "p5")]
    found = find(estimates_of(evidence_of(mine), evidence_of(some)), "fork_entropy_vs_baseline_rel")
    c = slow_forks(sorted_tokens([row for row in mine if row["prompt_id"] in ("p2", "p3", "p4", "p5")]))
    assert found.value == pytest.approx(c[0] / slow_forks(sorted_tokens(some))[0] - 1, abs=5e-3)
    assert found.n == 4
    assert "excess curve" in found.how


# --- token types --------------------------------------------------------------------------------------------------------------


def test_token_types_equal_pandas():
    rows = stepped_rows(5, fork=0.5)
    tokens = (
        pd.DataFrame(as_stored(rows).rows())
        .explode(["token_ids", "entropies"])
        .astype({"entropies": float, "token_ids": int})
    )
    expected = tokens.groupby("token_ids").entropies.agg(["mean", "sum", "count"]).sort_values("mean", ascending=False)
    vocab = {i: f"<{i}>" for i in range(50)}
    evidence = evidence_of(rows, vocab=vocab)
    found = [number for number in estimates_of(evidence) if number.name == "fork_token"]
    assert len(found) == 20
    assert [number.at["id"] for number in found] == expected.index[:20].tolist()
    assert [number.value for number in found] == pytest.approx(expected["mean"][:20].tolist(), rel=1e-9)
    assert [number.at["count"] for number in found] == expected["count"][:20].tolist()
    assert found[0].at["token"] == f"<{found[0].at['id']}>"
    share = find(estimates_of(evidence), "fork_token_share", id=found[0].at["id"])
    assert share.value == pytest.approx(expected["sum"].iloc[0] / tokens.entropies.sum(), rel=1e-9)
    # Ten steps in at most 8 cells: two by two.
    change = find(estimates_of(evidence), "fork_token_change", id=found[0].at["id"])
    mine = tokens[tokens.token_ids == found[0].at["id"]]
    expected_change = mine[mine.step >= 8].entropies.mean() - mine[mine.step <= 1].entropies.mean()
    assert change.value == pytest.approx(expected_change, rel=1e-9)
    assert (change.at["buckets"], change.at["width"]) == ([0, 8], 2)


def test_without_a_vocabulary_a_token_is_its_id():
    found = [number for number in estimates_of(evidence_of(stepped_rows(6))) if number.name == "fork_token"]
    assert all(number.at["token"] == number.at["id"] for number in found)
