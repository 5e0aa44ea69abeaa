"""Calibration against scikit-learn, slow loops and hand values."""

from __future__ import annotations

import numpy as np
import pytest
from making import evidence_of, find
from sklearn.metrics import brier_score_loss, roc_auc_score

from equipoise.errors import UsageError
from equipoise.measures.calibration import (
    Ranked,
    accuracy_at_coverage,
    area_under_roc,
    brier_parts,
    brier_score,
    calibration_error,
    estimate_calibration,
    within_question,
)
from equipoise.measures.evidence import Options


def drawn(seed, prompts=40, samples=6, digits=1):
    """Confidences to `digits` decimals, so that many tie, and verdicts that follow them loosely."""
    rng = np.random.default_rng(seed)
    prompt = np.repeat(np.arange(prompts), samples)
    rate = rng.beta(0.5, 0.5, prompts)[prompt]
    right = (rng.random(len(prompt)) < rate).astype(float)
    confidence = np.round(np.clip(0.5 * rate + 0.5 * rng.random(len(prompt)), 0, 1), digits)
    return confidence, right, prompt


def rows_of(confidence, right, prompt, **cells):
    return [
        {"prompt_id": f"p{p}", "confidence": float(q), "correct": bool(y), **cells}
        for q, y, p in zip(confidence, right, prompt, strict=True)
    ]


def estimates_of(rows, baseline=None, **options):
    other = None if baseline is None else evidence_of(baseline)
    return estimate_calibration(evidence_of(rows), baseline=other, options=Options(**options))


@pytest.mark.parametrize("digits", [1, 12])
def test_brier_and_auroc_are_scikit_learns(digits):
    confidence, right, prompt = drawn(0, digits=digits)
    assert brier_score(confidence, right) == pytest.approx(brier_score_loss(right, confidence), abs=1e-12)
    area = area_under_roc(Ranked.of(confidence, right, prompt))
    assert area == pytest.approx(roc_auc_score(right, confidence), abs=1e-12)
    numbers = estimates_of(rows_of(confidence, right, prompt))
    assert find(numbers, "brier").value == pytest.approx(brier_score_loss(right, confidence), abs=1e-9)
    assert find(numbers, "auroc").value == pytest.approx(roc_auc_score(right, confidence), abs=1e-9)
    assert find(numbers, "overconfidence").value == pytest.approx(confidence.mean() - right.mean(), abs=1e-9)
    assert find(numbers, "auroc").n == 40


def slow_ece(confidence, right, bins):
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        held = [i for i, q in enumerate(confidence) if low <= q < high or (b == bins - 1 and q == 1)]
        if held:
            gap = abs(np.mean([confidence[i] for i in held]) - np.mean([right[i] for i in held]))
            total += len(held) / len(confidence) * gap
    return total


@pytest.mark.parametrize("bins", [1, 7, 10, 100])
def test_calibration_error_is_that_of_a_slow_loop(bins):
    for digits in (2, 12):
        confidence, right, _ = drawn(1, digits=digits)
        assert calibration_error(confidence, right, bins=bins) == pytest.approx(slow_ece(confidence, right, bins))


def test_a_constant_predictor_errs_by_its_distance_from_the_accuracy():
    right = np.asarray([1.0, 0, 0, 1, 1, 0, 0, 0])
    for constant in (0.0, 0.3, 0.55, 1.0):
        assert calibration_error(np.full(8, constant), right, bins=10) == pytest.approx(abs(constant - 3 / 8))


def test_bins_hold_both_ends_and_decimal_edges_fall_where_they_are_written():
    # 0 and 1 have bins of their own among ten; 0.29 belongs to [0.29, 0.30) of a hundred though 0.29 · 100 < 29.
    assert calibration_error(np.asarray([0.0, 1.0]), np.asarray([1.0, 0.0]), bins=10) == pytest.approx(1)
    together = calibration_error(np.asarray([0.29, 0.2999]), np.asarray([1.0, 0.0]), bins=100)
    assert together == pytest.approx(abs((0.29 + 0.2999) / 2 - 0.5))


def test_perfect_forecasts():
    right = np.asarray([1.0, 0, 1, 0])
    assert brier_score(right, right) == 0
    assert calibration_error(right, right, bins=10) == 0
    assert area_under_roc(Ranked.of(right, right, np.arange(4))) == 1
    number = find(estimates_of(rows_of(right, right, np.arange(4))), "auroc")
    assert (number.value, number.low, number.high) == (1, None, None)


def test_a_constant_confidence_tells_nothing_apart():
    right, prompt = np.asarray([1.0, 0, 1, 0, 0]), np.asarray([0, 0, 1, 1, 2])
    ranked = Ranked.of(np.full(5, 0.7), right, prompt)
    assert area_under_roc(ranked) == 0.5
    np.testing.assert_array_equal(within_question(ranked)[1], [0.5, 0.5, np.nan])
    assert find(estimates_of(rows_of(np.full(5, 0.7), right, prompt)), "auroc").value == 0.5


def test_one_kind_of_verdict_has_no_auroc():
    numbers = estimates_of(rows_of([0.2, 0.4], [1, 1], [0, 1]))
    assert not [n for n in numbers if n.name in ("auroc", "within_question")]
    assert np.isnan(area_under_roc(Ranked.of(np.asarray([0.2]), np.asarray([1.0]), np.asarray([0]))))


@pytest.mark.parametrize("bins", [1, 5, 10])
def test_brier_parts_add_up_exactly_and_are_murphys_where_bins_hold_one_value(bins):
    confidence, right, _ = drawn(2, digits=12)
    parts = brier_parts(confidence, right, bins=bins)
    whole = parts.reliability - parts.resolution + parts.uncertainty + parts.within_bins
    assert whole == pytest.approx(brier_score(confidence, right), abs=1e-15)
    coarse = np.floor(confidence * bins) / bins
    assert brier_parts(coarse, right, bins=bins).within_bins == pytest.approx(0, abs=1e-15)


def test_brier_parts_by_hand():
    # 0.2 said twice, right once; 0.8 said twice, right both times; accuracy 3/4.
    parts = brier_parts(np.asarray([0.2, 0.2, 0.8, 0.8]), np.asarray([1.0, 0, 1, 1]), bins=10)
    assert parts.reliability == pytest.approx(0.5 * 0.3**2 + 0.5 * 0.2**2)
    assert parts.resolution == pytest.approx(0.5 * 0.25**2 + 0.5 * 0.25**2)
    assert parts.uncertainty == pytest.approx(3 / 16)


def test_within_question_by_hand():
    # p: right 0.9 and 0.5 against wrong 0.5 and 0.1: 1 + 1 + ½ + 1 of 4. q: 0 of 1. r has no wrong one.
    confidence = np.asarray([0.9, 0.5, 0.5, 0.1, 0.3, 0.6, 0.7])
    right = np.asarray([1.0, 1, 0, 0, 1, 0, 1])
    prompt = np.asarray([4, 4, 4, 4, 1, 1, 9])
    problems, share = within_question(Ranked.of(confidence, right, prompt))
    assert problems.tolist() == [1, 4, 9]
    np.testing.assert_allclose(share, [0, 3.5 / 4, np.nan])
    number = find(estimates_of(rows_of(confidence, right, prompt)), "within_question")
    assert number.value == pytest.approx(3.5 / 8)
    assert number.n == 2


def test_within_question_is_each_questions_own_auroc():
    confidence, right, prompt = drawn(3)
    problems, share = within_question(Ranked.of(confidence, right, prompt))
    for problem, value in zip(problems, share, strict=True):
        mine = prompt == problem
        if 0 < right[mine].sum() < mine.sum():
            assert value == pytest.approx(roc_auc_score(right[mine], confidence[mine]))
        else:
            assert np.isnan(value)


def test_knowing_easy_questions_from_hard_ones_is_not_within_question():
    # Confidence is the question's accuracy and the same for all its replies: a good AUROC, and no use for a vote.
    prompt = np.repeat(np.arange(4), 10)
    right = np.concatenate([np.arange(10) < k for k in (1, 3, 7, 9)]).astype(float)
    ranked = Ranked.of(np.repeat([0.1, 0.3, 0.7, 0.9], 10), right, prompt)
    assert area_under_roc(ranked) > 0.8
    np.testing.assert_allclose(within_question(ranked)[1], 0.5)


def test_accuracy_at_coverage_by_hand_with_a_tie_at_the_cut():
    confidence = np.asarray([0.9, 0.8, 0.5, 0.5, 0.5, 0.5, 0.2, 0.1])
    right = np.asarray([1.0, 0, 1, 1, 1, 0, 0, 1])
    ranked = Ranked.of(confidence, right, np.arange(8))
    # A quarter: the first two. Half: those two and two of the four tied at 0.5, of which 3/4 are right.
    assert accuracy_at_coverage(ranked, 0.25) == pytest.approx(1 / 2)
    assert accuracy_at_coverage(ranked, 0.5) == pytest.approx((1 + 2 * 3 / 4) / 4)
    assert accuracy_at_coverage(ranked, 1.0) == pytest.approx(right.mean())
    numbers = estimates_of(rows_of(confidence, right, np.arange(8)))
    assert find(numbers, "accuracy_at_coverage", coverage=0.5).value == pytest.approx(2.5 / 4)


def test_accuracy_at_coverage_is_that_of_the_sorted_rollouts():
    confidence, right, prompt = drawn(4, digits=12)
    ranked = Ranked.of(confidence, right, prompt)
    best = right[np.argsort(-confidence)]
    for coverage in (0.25, 0.5, 0.75):
        assert accuracy_at_coverage(ranked, coverage) == pytest.approx(best[: int(coverage * len(best))].mean())


def test_weights_count_rollouts_several_times():
    confidence, right, prompt = drawn(5, prompts=10)
    ranked = Ranked.of(confidence, right, prompt)
    times = np.random.default_rng(0).integers(0, 3, 10)
    rows = np.repeat(np.arange(len(prompt)), times[prompt])
    again = Ranked.of(confidence[rows], right[rows], prompt[rows])
    for coverage in (0.25, 0.75):
        weighted = accuracy_at_coverage(ranked, coverage, times[ranked.prompt_N])
        assert weighted == pytest.approx(accuracy_at_coverage(again, coverage))


def test_the_auroc_interval_has_the_width_of_a_jackknife_over_problems():
    confidence, right, prompt = drawn(6, prompts=60)
    number = find(estimates_of(rows_of(confidence, right, prompt)), "auroc")
    without = [roc_auc_score(right[prompt != p], confidence[prompt != p]) for p in range(60)]
    error = np.sqrt(59 / 60 * np.sum((np.asarray(without) - np.mean(without)) ** 2))
    assert number.high - number.low == pytest.approx(2 * 2.0 * error, rel=0.08)  # t with 59 degrees of freedom
    assert number.low < number.value < number.high


def test_out_of_range_confidences_and_missing_verdicts_are_left_out_and_counted():
    confidence, right, prompt = drawn(7)
    rows = rows_of(confidence, right, prompt)
    spoiled = [*rows, rows[0] | {"confidence": 1.7}, rows[0] | {"correct": None}, rows[0] | {"confidence": None}]
    ours, theirs = estimates_of(spoiled), estimates_of(rows)
    assert [n.value for n in ours] == [n.value for n in theirs]
    assert "left out: 3 of 243 rollouts" in ours[0].how
    assert "left out" not in theirs[0].how


@pytest.mark.parametrize(
    ("row", "missing"),
    [
        ({"prompt_id": "p", "correct": True}, "column confidence"),
        ({"prompt_id": "p", "confidence": 0.5}, "column correct"),
        ({"prompt_id": "p", "confidence": 80.0, "correct": True}, "between 0 and 1"),
    ],
)
def test_what_is_missing_is_named(row, missing):
    [number] = estimates_of([row])
    assert number.value is None
    assert missing in number.missing


@pytest.mark.parametrize(("option", "value"), [("bins", 0), ("seed", -1), ("solved_at", float("nan"))])
def test_options_are_checked_where_they_are_made(option, value):
    with pytest.raises(UsageError, match=f"{value} was asked"):
        Options(**{option: value})


def test_early_and_late_steps_and_their_change():
    confidence, right, prompt = drawn(8)
    early = rows_of(confidence, right, prompt, step=1)
    late = rows_of(np.clip(confidence + 0.2, 0, 1), right, prompt, step=2)
    numbers = estimates_of(early + late)
    raised = np.clip(confidence + 0.2, 0, 1)
    assert find(numbers, "brier", window="late").value == pytest.approx(brier_score_loss(right, raised))
    assert find(numbers, "brier", window="early").value == pytest.approx(brier_score_loss(right, confidence))
    change = find(numbers, "overconfidence_change")
    assert change.value == pytest.approx((raised - confidence).mean())
    assert find(numbers, "brier_change").value == pytest.approx(
        brier_score_loss(right, raised) - brier_score_loss(right, confidence)
    )


def test_against_a_baseline_on_the_same_problems():
    confidence, right, prompt = drawn(9)
    flat = rows_of(np.full(len(right), 0.5), right, prompt)
    number = find(estimates_of(rows_of(confidence, right, prompt), baseline=flat), "brier_vs_baseline")
    assert number.value == pytest.approx(brier_score_loss(right, confidence) - 0.25)
    assert number.at["against"] == "baseline"
