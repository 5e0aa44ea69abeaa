"""Traces with trial answers: Parallel-Probe's counters by hand, MARS's margin by hand, and both on scripted traces."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from asking import solve
from sklearn.linear_model import LogisticRegression

from equipoise.base import Answer, Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.mars import MARS
from equipoise.infer.parallel_probe import ParallelProbe, Watch
from equipoise.infer.switching import choose_gamma, fit_switches, safe_leader, switch_features

LONG = 30


def asked(max_tokens=100):
    def read(completion):
        text = (completion.text or "").strip("x")
        return Answer(text) if text.isdigit() else None

    return Question("q", "Q", read, Sampling(max_tokens=max_tokens))


def traces(trial, final="7", long=LONG):
    """Thirty x and then an answer; asked before that, it says `trial` of the x so far."""

    def say(prompt, index):
        so_far = prompt.count("x")
        return trial(so_far, index) if prompt.endswith("!") else "x" * (long - so_far) + final

    return say


def answers(text):
    return [None if letter == "-" else Answer(letter) for letter in text]


# --- Parallel-Probe


def test_it_stops_when_the_majority_stays():
    watch = Watch(stable=3, warmup=0, patience=9)
    assert [watch.look(answers(said)) for said in ("aab", "aab", "aaa")] == [False, False, True]


def test_the_counter_resets_when_the_leader_changes():
    watch = Watch(stable=3, warmup=0, patience=9)
    looks = ["aab", "aab", "bba", "bba", "---", "bba", "bba", "bba"]
    assert [watch.look(answers(said)) for said in looks] == [False] * 7 + [True]


def test_nothing_stops_or_is_dropped_during_the_warm_up():
    watch = Watch(stable=1, warmup=2, patience=1)
    assert [watch.look(answers("aab")) for _ in range(3)] == [False, False, True]
    watch = Watch(stable=9, warmup=2, patience=2)
    dropped = []
    for said in ("aab", "aab", "aab", "aab"):
        watch.look(answers(said))
        dropped.append(watch.dropped[2])
    assert dropped == [False, False, False, True]  # it counts from the third probe on


def test_a_trace_that_agrees_again_or_says_nothing_is_not_dropped():
    watch = Watch(stable=9, warmup=0, patience=2)
    for said in ("aab", "aaa", "aab", "aa-", "aab"):
        watch.look(answers(said))
        assert not any(watch.dropped)


def test_traces_that_agree_are_stopped_after_the_warm_up():
    # Probes at 5, 10, 15, 20 and 25 tokens: the fifth is the first after the warm-up, and the leader was the same all along.
    choice, sampler = solve(ParallelProbe(n=4, every=5, cue="!"), traces(lambda x, i: "7"), asked())
    assert (choice.answer, choice.stopped_by) == (Answer("7"), "consensus")
    assert (choice.spent.answer, choice.spent.probe) == (4 * 25, 4 * 5)
    assert choice.spent.generated == sampler.generated
    assert choice.chosen.text == "7"
    assert choice.chosen.thinking == "x" * 25


def test_a_trace_that_stays_away_is_dropped_and_draws_nothing_more():
    # Trials number their draws: of the three at each probe the third says 4.
    choice, _ = solve(
        ParallelProbe(n=3, every=5, stable=9, warmup=1, cue="!"),
        traces(lambda x, i: "4" if i in (2, 5, 8) else "7"),
        asked(),
    )
    assert choice.answer == Answer("7")
    # Two traces of 31 tokens; the third was dropped at its third probe, with 15.
    assert choice.spent.answer == 2 * (LONG + 1) + 15
    assert dict(choice.ballots) == {"7": 2.0}
    assert "1 of 3 traces" in choice.notes[0]


def test_where_the_budget_ends_the_last_trials_vote():
    choice, sampler = solve(ParallelProbe(n=2, every=5, cue="!"), traces(lambda x, i: "4"), asked(), budget=25)
    assert (choice.answer, choice.stopped_by) == (Answer("4"), "budget")
    assert sampler.generated <= 25


# --- MARS


def test_without_switches_a_lead_is_enough_and_a_tie_is_not():
    assert safe_leader(["a", "a", "b"], [0, 0, 0]) == "a"
    assert safe_leader(["a", "b"], [0, 0]) is None
    assert safe_leader([None, None], [0, 0]) is None


def test_where_all_switch_only_finished_votes_decide():
    assert safe_leader(["a"] * 5, [1] * 5) is None  # an answer not seen yet could have all of them
    said, switch = ["a"] * 11 + ["b"] * 5, [0] * 11 + [1] * 5
    assert safe_leader(said, switch) == "a"  # 11 against at most 5
    assert safe_leader(["a"] * 5 + ["b"] * 5, [0] * 5 + [1] * 5) is None


def test_a_margin_by_hand():
    # Six a, two b, one c, each likely to switch with 0.1. Against b: 4 > 0.1 · (12 − 2 + 1); unseen: 6 > 0.1 · (12 + 2 + 1).
    said = list("aaaaaabbc")
    assert safe_leader(said, [0.1] * 9) == "a"
    # With 0.4 against b: 4 > 4.4 fails; with half the cost 4 > 0.4 · (6 − 2 + 0.5) = 1.8 and 6 > 0.4 · 7.5 = 3 hold.
    assert safe_leader(said, [0.4] * 9) is None
    assert safe_leader(said, [0.4] * 9, gamma=0.5) == "a"
    # √(2 · 9 · ln(3 / 0.05)) = 8.58 is more than any margin here.
    assert safe_leader(said, [0.1] * 9, delta=0.05) is None
    # Three a, two b at 0.2: against b 1 > 0.2 · (6 − 2) holds only since those who leave b make the margin wider.
    assert safe_leader(list("aaabb"), [0.2] * 5) == "a"
    assert safe_leader(list("aaabb"), [0.25] * 5) is None  # 1 > 1 fails
    # A trace without an answer may vote for the challenger: 1 > 0.6 · 2 + 0.6 fails, and 1 > 0.3 · 2 + 0.3 holds.
    assert safe_leader(["a", None], [0.6, 0.6]) is None
    assert safe_leader(["a", None], [0.3, 0.3]) == "a"


def test_it_is_safe_less_often_for_a_larger_gamma_and_a_smaller_delta():
    random = np.random.default_rng(0)
    for _ in range(300):
        said = [str(a) for a in random.choice(3, size=40, p=[0.7, 0.2, 0.1])]
        switch = (random.random(40) * random.choice([0, 0.05, 0.3])).tolist()
        safe = [safe_leader(said, switch, gamma=g) is not None for g in (0.5, 0.7, 1.0)]
        assert all(a or not b for a, b in pairwise(safe))
        safe = [safe_leader(said, switch, delta=d) is not None for d in (0.9, 0.5, 0.05, 0.001)]
        assert all(a or not b for a, b in pairwise(safe))


def test_features_by_hand():
    found = switch_features(["a", "a", "b", None], [0.5, 0.7, 0.4, 0.9], every=10)
    expected = [[10, 0.5, 0, 1, 0], [20, 0.7, 0, 2, 0.2], [30, 0.4, 1, 1, -0.3], [40, 0.9, 2, 1, 0.5]]
    assert found == pytest.approx(np.array(expected))


def test_the_fit_is_that_of_another_library_and_platt_leaves_it_nearly_alone():
    random = np.random.default_rng(3)
    feature_RF = random.normal(size=(200, 5)) * [100, 0.2, 2, 3, 0.1] + [500, 0.7, 1, 3, 0]
    z = (feature_RF - feature_RF.mean(axis=0)) / feature_RF.std(axis=0)
    switched = (random.random(200) < 1 / (1 + np.exp(-(z @ [0.5, -1, 0.3, -0.7, 0] - 0.4)))).astype(float)
    model = fit_switches(feature_RF, switched)
    peer = LogisticRegression(C=50, fit_intercept=False, tol=1e-10, max_iter=1000)  # 1 / (2 · 0.01)
    peer.fit(np.column_stack([np.ones(200), z]), switched)
    assert model.weights == pytest.approx(peer.coef_[0], abs=2e-5)
    assert model.platt == pytest.approx((1, 0), abs=0.02)
    assert model.chances(feature_RF).mean() == pytest.approx(switched.mean(), abs=0.01)


def test_features_that_were_not_measured_or_never_vary_are_left_out():
    unmeasured = np.concatenate([switch_features(list("ab"), [None, None], every=5)] * 4)
    model = fit_switches(unmeasured, np.array([1.0, 0.0] * 4))
    assert model.used_F.tolist() == [True, False, True, False, False]
    chances = model.chances(unmeasured)
    assert chances[0] > 0.9 > 0.1 > chances[1]


def test_gamma_is_the_least_of_the_band_that_leaves_the_answer():
    assert choose_gamma(lambda gamma: "a", "a") == 0.5
    assert choose_gamma(lambda gamma: "a" if gamma > 0.75 else "b", "a") == 0.8
    assert choose_gamma(lambda gamma: None if gamma > 0.95 else "b", "a") == 1.0
    assert choose_gamma(lambda gamma: "b" if 0.65 < gamma < 0.75 else None, "a") == 0.8


def test_traces_that_never_change_their_mind_are_stopped_at_the_first_look():
    choice, sampler = solve(MARS(n=8, warmup=2, every=10, cue="!"), traces(lambda x, i: "7"), asked())
    assert (choice.answer, choice.stopped_by) == (Answer("7"), "safe_margin")
    # The warm-up: 2 × 31 and three probes of each. The rest: 6 × 10 and one probe of each.
    assert (choice.spent.answer, choice.spent.probe) == (62 + 60, 6 + 6)
    assert choice.spent.generated == sampler.generated
    assert dict(choice.ballots) == {"7": 8.0}


def test_traces_that_always_change_their_mind_run_to_their_ends():
    choice, _ = solve(MARS(n=8, warmup=2, every=10, cue="!"), traces(lambda x, i: "4"), asked())
    assert (choice.answer, choice.stopped_by) == (Answer("7"), "finished")
    assert (choice.spent.answer, choice.spent.probe) == (8 * 31, 8 * 3)


def test_finished_votes_can_no_longer_change():
    """Six that are finished outvote the two that will leave their trial answer, wherever these go."""
    choice, _ = solve(MARS(n=8, warmup=6, every=10, cue="!"), traces(lambda x, i: "4"), asked())
    assert (choice.answer, choice.stopped_by) == (Answer("7"), "safe_margin")
    assert (choice.spent.answer, choice.spent.probe) == (6 * 31 + 2 * 10, 6 * 3 + 2)


@pytest.mark.parametrize("settings", [{"n": 0}, {"warmup": 0}, {"every": 0}, {"delta": 0.0}, {"delta": 1.0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(UsageError):
        MARS(**settings)
