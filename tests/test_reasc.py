"""ReASC: soft counts and the gate by hand, and Adaptive-Consistency where confidence counts for nothing."""

from __future__ import annotations

from itertools import product
from math import exp, sqrt

import pytest
from asking import ask, solve, sure

from equipoise.base import Answer
from equipoise.errors import UsageError
from equipoise.infer.adaptive import AdaptiveConsistency
from equipoise.infer.reasc import ReASC, calibrate_gate, soft_counts


def test_soft_counts_by_hand():
    # Mean 2, deviation 1: z is −1 and 1.
    assert soft_counts([1.0, 3.0], sharpness=0.7) == pytest.approx([1.0, exp(0.7)])
    # 1, 2, 6: mean 3, deviation √(14/3).
    assert soft_counts([1.0, 2.0, 6.0], sharpness=0.5) == pytest.approx([1.0, 1.0, exp(0.5 * 3 / sqrt(14 / 3))])
    assert soft_counts([1.0, 3.0], sharpness=1.0, centre=0.0, spread=2.0) == pytest.approx([exp(0.5), exp(1.5)])
    assert soft_counts([4.0, 4.0], sharpness=9.0) == [1.0, 1.0]
    assert soft_counts([], sharpness=1.0) == []


def test_without_sharpness_it_is_adaptive_consistency():
    for says in product("47?", repeat=6):
        replies = [sure(text, float(1 + i)) for i, text in enumerate(says)]
        ours, _ = solve(ReASC(cap=6, sharpness=0.0), replies)
        theirs, _ = solve(AdaptiveConsistency(cap=6), replies)
        assert (ours.answer, ours.ballots, ours.stopped_by) == (theirs.answer, theirs.ballots, theirs.stopped_by)
        assert len(ours.drawn) == len(theirs.drawn)


def test_sure_votes_stop_it_sooner_and_outweigh_more_unsure_ones():
    # 4 at 0.5 twice and 7 at 5: z of 7 is √2, so it counts e^{λ√2} = 2.69 at λ = 0.7, more than the two.
    replies = [sure("4", 0.5), sure("4", 0.5), sure("7", 5.0)]
    choice, _ = solve(ReASC(cap=3, threshold=1.0), replies)
    assert choice.answer == Answer("7")
    assert choice.ballots == {"4": 2.0, "7": pytest.approx(exp(0.7 * sqrt(2)))}
    # Given a centre, every vote counts e^{0.7·2} = 4.06: two of them are as good as eight, one is not as good as four.
    choice, _ = solve(ReASC(centre=0.0, spread=1.0), [sure("4", 2.0)] * 16)
    assert (len(choice.drawn), choice.stopped_by) == (1, "consensus")  # 1 − ½^{5.06} = 0.970
    choice, _ = solve(ReASC(centre=0.0, spread=1.0), [sure("4", 1.0)] * 16)
    assert len(choice.drawn) == 2  # 1 − ½^{3.01} = 0.876; 1 − ½^{5.03} = 0.969


def test_a_first_completion_past_the_gate_decides_alone():
    choice, sampler = solve(ReASC(gate=2.0), [sure("4", 2.0), sure("7", 9.0)])
    assert (choice.answer, choice.stopped_by, sampler.generated) == (Answer("4"), "confidence", 1)
    choice, _ = solve(ReASC(gate=2.0, cap=2), [sure("4", 1.9), sure("7", 9.0)])
    assert len(choice.drawn) == 2
    choice, _ = solve(ReASC(gate=2.0, cap=2), [sure("?", 9.0), sure("7", 9.0)])
    assert choice.answer == Answer("7")  # one without an answer passes no gate


def test_the_gate_is_the_lowest_from_which_enough_were_right():
    # From the surest down: right, right, wrong, right, right, wrong: 1, 1, 2/3, 3/4, 4/5, 4/6.
    confidence, correct = [6, 5, 4, 3, 2, 1], [1, 1, 0, 1, 1, 0]
    assert calibrate_gate(confidence, correct, target=0.8) == 2
    assert calibrate_gate(confidence, correct, target=0.9) == 5
    assert calibrate_gate(confidence, correct, target=0.5) == 1
    assert calibrate_gate([3, 3, 1], [1, 0, 1], target=0.9) is None  # equal ones pass together: 1/2 and 2/3
    assert calibrate_gate([], [], target=0.9) is None


def test_without_log_probs_it_is_an_error_or_a_plain_vote():
    with pytest.raises(UsageError, match="have no weight"):
        solve(ReASC(cap=2), ["4", "7"])
    choice, _ = solve(ReASC(cap=4, missing="majority"), ["4", "7", "4", "4"], ask())
    assert choice.answer == Answer("4")
    assert "plain vote" in choice.notes[0]


@pytest.mark.parametrize(
    "settings", [{"cap": 0}, {"sharpness": -1.0}, {"spread": 0.0}, {"rule": "top"}, {"threshold": 0.0}]
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(UsageError):
        ReASC(**settings)
