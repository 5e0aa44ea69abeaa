"""Stopping rules: values by hand and by exact fractions, error rates by walking every path of votes and by simulation."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binomtest

from benchmarks.stopping.run import RULES, count_votes
from equipoise.base import Answer, Choice, Completion, Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.adaptive import ESC, AdaptiveConsistency, Doubling
from equipoise.infer.anytime import Anytime
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.stopping import (
    agreement,
    beta_posterior,
    count_answers,
    doubling_batches,
    log_e_value,
    unanimous,
    weigh_leader,
)
from equipoise.samplers.scripted import Reply, Scripted

ALPHA = 0.05


def read(completion: Completion) -> Answer | None:
    text = completion.text or ""
    return None if text in ("", "?") else Answer(text)


def ask(max_tokens: int = 100) -> Question:
    return Question("q", "which?", read, Sampling(max_tokens=max_tokens))


def solve(strategy, replies, budget: int | None = None, max_tokens: int = 100) -> Choice:
    return asyncio.run(strategy(ask(max_tokens), Metered(Scripted(replies), Ledger(budget))))


def letters(text: str) -> list[Answer | None]:
    return [None if letter == "?" else Answer(letter) for letter in text]


def exact_e_value(ahead: int, behind: int) -> Fraction:
    """2^{a+b+1} ∫_½^1 θ^a (1 − θ)^b dθ, the power of (1 − θ) multiplied out."""
    terms = (
        math.comb(behind, j) * (-1) ** j * (1 - Fraction(1, 2 ** (ahead + j + 1))) / (ahead + j + 1)
        for j in range(behind + 1)
    )
    return 2 ** (ahead + behind + 1) * sum(terms, Fraction(0))


# --- the Beta rule -------------------------------------------------------------------------------------------------------


def test_beta_rule_by_hand():
    # 1 − Σ_{i ≤ v2} C(v1 + v2 + 1, i) / 2^{v1 + v2 + 1}
    assert beta_posterior(4, 0) == pytest.approx(1 - 1 / 32, abs=1e-9)
    assert beta_posterior(3, 0) == pytest.approx(1 - 1 / 16, abs=1e-9)
    assert beta_posterior(5, 1) == pytest.approx(1 - (1 + 7) / 128, abs=1e-9)
    assert beta_posterior(6, 1) == pytest.approx(1 - (1 + 8) / 256, abs=1e-9)
    assert beta_posterior(0, 0) == pytest.approx(0.5, abs=1e-9)


def test_beta_rule_is_the_integral_and_the_binomial_sum():
    for first in range(15):
        for second in range(first + 1):
            n = first + second + 1
            binomial = 1 - Fraction(sum(math.comb(n, i) for i in range(second + 1)), 2**n)
            mass, _ = quad(lambda p, a=first, b=second: p**a * (1 - p) ** b, 0.5, 1, epsabs=1e-14)
            whole, _ = quad(lambda p, a=first, b=second: p**a * (1 - p) ** b, 0, 1, epsabs=1e-14)
            assert beta_posterior(first, second) == pytest.approx(float(binomial), abs=1e-9)
            assert beta_posterior(first, second) == pytest.approx(mass / whole, abs=1e-9)


# --- e-values ------------------------------------------------------------------------------------------------------------


def test_e_value_is_the_integral_in_exact_fractions():
    for ahead in range(16):
        for behind in range(16):
            assert math.exp(log_e_value(ahead, behind)) == pytest.approx(float(exact_e_value(ahead, behind)), rel=1e-9)


def test_e_value_of_equal_votes_and_how_many_reach_twenty():
    for n in range(1, 40):
        assert log_e_value(n, 0) == pytest.approx(math.log((2 ** (n + 1) - 1) / (n + 1)), abs=1e-9)
    # An answer named beforehand is certified at 1/alpha: seven votes, 255/8; six give 127/7.
    assert math.exp(log_e_value(7, 0)) == pytest.approx(255 / 8)
    assert math.exp(log_e_value(6, 0)) < 1 / ALPHA <= math.exp(log_e_value(7, 0))


def test_e_value_is_a_fair_bet_against_a_fair_coin():
    for ahead in range(0, 60, 7):
        for behind in range(0, 60, 7):
            after = math.exp(log_e_value(ahead + 1, behind)) + math.exp(log_e_value(ahead, behind + 1))
            assert after / 2 == pytest.approx(math.exp(log_e_value(ahead, behind)), rel=1e-9)


def test_e_value_grows_with_votes_for_and_falls_with_votes_against():
    for ahead in range(30):
        for behind in range(30):
            assert log_e_value(ahead + 1, behind) > log_e_value(ahead, behind) > log_e_value(ahead, behind + 1)


def test_e_value_of_many_votes_is_a_number():
    assert log_e_value(100_000, 0) == pytest.approx(100_001 * math.log(2) - math.log(100_001))
    assert log_e_value(50_000, 50_000) < 0
    assert log_e_value(0, 5_000) == pytest.approx(-math.log(5_001))  # 2^{b+1} / ((b + 1) 2^{b+1})
    assert log_e_value(30, 1_500) == pytest.approx(math.log(exact_e_value(30, 1_500)), rel=1e-9)


# --- the certificate -----------------------------------------------------------------------------------------------------


def test_certificate_by_hand():
    # 3/2 / (0.05 · 0.6) = 50 for the answer seen first, 3/2 / (0.05 · 0.24) = 125 for the second.
    first = weigh_leader({"a": 8}, alpha=ALPHA)
    assert (first.leader, math.exp(first.log_needed)) == ("a", pytest.approx(50))
    assert math.exp(first.log_e) == pytest.approx(511 / 9)
    assert first.enough
    assert not weigh_leader({"a": 7}, alpha=ALPHA).enough  # 255/8
    later = weigh_leader({"b": 1, "a": 11}, alpha=ALPHA)
    assert (later.leader, math.exp(later.log_needed)) == ("a", pytest.approx(125))
    assert math.exp(later.log_e) == pytest.approx(float(exact_e_value(11, 1)))
    assert weigh_leader({}, alpha=ALPHA) is None


def test_the_nearest_challenger_decides():
    one, many = weigh_leader({"a": 20, "b": 5}, alpha=ALPHA), weigh_leader({"a": 20, "b": 5, "c": 4}, alpha=ALPHA)
    assert one == many
    assert weigh_leader({"a": 20, "b": 5, "c": 6}, alpha=ALPHA).log_e < one.log_e


def test_the_shares_of_all_places_are_alpha_together():
    for alpha in (0.05, 0.2):
        spent = 0.0
        for place in range(200):
            counts = {str(i): 1 for i in range(place)} | {"leader": 2}
            spent += 1.5 / math.exp(weigh_leader(counts, alpha=alpha).log_needed)
        assert spent == pytest.approx(alpha)
        assert spent <= alpha * (1 + 1e-9)


def certified_of_two(certifies: Callable[[int, int], bool], *, first: float, cap: int) -> tuple[float, float]:
    """The probability that the answer seen first, and that the other one, is ever certified within `cap` votes.

    `first` is the probability of the answer that is seen first, which has `a` of the votes (a, b). Every path of votes is
    walked, those to equal counts together.
    """
    paths = {(1, 0): 1.0}
    found = [0.0, 0.0]
    for _ in range(cap):
        after: dict[tuple[int, int], float] = {}
        for (a, b), weight in paths.items():
            if a != b and certifies(a, b):
                found[0 if a > b else 1] += weight
            else:
                after[a + 1, b] = after.get((a + 1, b), 0.0) + weight * first
                after[a, b + 1] = after.get((a, b + 1), 0.0) + weight * (1 - first)
        paths = after
    return found[0], found[1]


def by_certificate(a: int, b: int) -> bool:
    evidence = weigh_leader({"a": a, "b": b} if b else {"a": a}, alpha=ALPHA)
    return evidence is not None and evidence.enough


def by_plain_e_value(a: int, b: int) -> bool:
    return log_e_value(max(a, b), min(a, b)) >= -math.log(ALPHA)


def test_two_equally_likely_answers_are_seldom_certified_over_all_paths():
    assert sum(certified_of_two(by_certificate, first=0.5, cap=64)) < ALPHA
    assert sum(certified_of_two(by_certificate, first=0.5, cap=300)) < ALPHA
    # Why 1/alpha is not enough for a leader that the votes choose:
    assert sum(certified_of_two(by_plain_e_value, first=0.5, cap=64)) > ALPHA
    assert sum(certified_of_two(by_plain_e_value, first=0.5, cap=300)) > 1.2 * ALPHA


def test_the_less_likely_of_two_answers_is_seldom_certified_over_all_paths():
    likely_first, unlikely_first = (certified_of_two(by_certificate, first=first, cap=64) for first in (0.55, 0.45))
    wrong = 0.55 * likely_first[1] + 0.45 * unlikely_first[0]
    assert 0 < wrong < ALPHA / 4


def test_beta_rule_under_peeking_is_wrong_as_often_as_was_measured():
    def by_beta(a: int, b: int) -> bool:
        return beta_posterior(max(a, b), min(a, b)) >= 0.95

    # 20,000 simulated questions elsewhere: 42 % stop before 40 votes at 50/50, 10.9 % on the wrong answer at 45/55
    assert sum(certified_of_two(by_beta, first=0.5, cap=39)) == pytest.approx(0.42, abs=0.01)
    wrong = (
        0.55 * certified_of_two(by_beta, first=0.55, cap=39)[1]
        + 0.45 * certified_of_two(by_beta, first=0.45, cap=39)[0]
    )
    assert wrong == pytest.approx(0.109, abs=0.01)


WORLDS = {
    "50/50": (0.5, 0.5),
    "45/55": (0.45, 0.55),
    "three alike": (1 / 3,) * 3,
    "near ties": (0.21, 0.2, 0.2, 0.2, 0.19),
    "twenty alike": (0.05,) * 20,
    "two alike and a tail": (0.3, 0.3) + (0.02,) * 20,
}


def false_certificates(shares: tuple[float, ...], *, questions: int, cap: int, seed: int) -> int:
    """Questions on which an answer is certified that is not the only most likely one, looking after every vote."""
    random, names = Random(seed), range(len(shares))
    modes = [name for name in names if shares[name] == max(shares)]
    false = 0
    for _ in range(questions):
        counts: dict[str, int] = {}
        for name in random.choices(names, shares, k=cap):
            counts[str(name)] = counts.get(str(name), 0) + 1
            evidence = weigh_leader(counts, alpha=ALPHA)
            if evidence is not None and evidence.enough:
                false += [evidence.leader] != [str(mode) for mode in modes]
                break
    return false


@pytest.mark.parametrize("world", WORLDS)
def test_false_certificates_are_at_most_alpha(world):
    false = false_certificates(WORLDS[world], questions=400, cap=64, seed=7)
    assert binomtest(false, 400, ALPHA, alternative="greater").pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_false_certificates_are_at_most_alpha_over_many_questions(world):
    false = false_certificates(WORLDS[world], questions=20_000, cap=128, seed=8)
    assert binomtest(false, 20_000, ALPHA, alternative="greater").pvalue > 1e-3
    assert false <= ALPHA * 20_000


# --- small rules ---------------------------------------------------------------------------------------------------------


def test_small_rules():
    assert count_answers(letters("ba?bb")) == {"b": 3, "a": 1}
    assert list(count_answers(letters("ba?bb"))) == ["b", "a"]
    assert (agreement({"a": 3, "b": 1}), agreement({})) == (0.75, 0.0)
    assert unanimous(letters("aaa"))
    assert not unanimous(letters("aab"))
    assert not unanimous(letters("aa?"))
    assert not unanimous(letters("???"))
    assert not unanimous([])
    assert list(doubling_batches(40)) == [2, 2, 4, 8, 16, 8]
    assert list(doubling_batches(1)) == [1]


# --- strategies ----------------------------------------------------------------------------------------------------------


def test_adaptive_consistency_stops_where_its_rule_does():
    same = solve(AdaptiveConsistency(), "a" * 40)
    assert (same.answer, len(same.drawn), same.stopped_by) == (Answer("a"), 4, "consensus")
    assert same.spent.generated == 4
    six_to_one = solve(AdaptiveConsistency(), "aabaaaa" + "?" * 40)
    assert (len(six_to_one.drawn), six_to_one.ballots) == (7, {"a": 6, "b": 1})
    abstained = solve(AdaptiveConsistency(), "?a?a?a?a" + "?" * 40)
    assert (len(abstained.drawn), abstained.abstained) == (8, 4)


def test_at_the_cap_the_most_common_answer_is_given():
    split = solve(AdaptiveConsistency(cap=6), "ababab")
    assert (len(split.drawn), split.stopped_by, split.tied) == (6, "finished", ("a", "b"))
    assert split.answer in (Answer("a"), Answer("b"))


def test_esc_takes_the_answer_of_the_window_that_agrees():
    choice = solve(ESC(), "aaaab" + "aaaac" + "bbbbb" + "?" * 40)
    assert (choice.answer, choice.stopped_by, len(choice.drawn)) == (Answer("b"), "unanimous", 15)
    assert choice.ballots == {"a": 8, "b": 6, "c": 1}
    assert choice.chosen is choice.drawn[4]


def test_esc_goes_on_where_one_of_a_window_abstains_and_votes_at_the_cap():
    choice = solve(ESC(window=2, cap=5), "a?" + "ab" + "b")
    assert (len(choice.drawn), choice.stopped_by, choice.abstained) == (5, "finished", 1)
    assert solve(ESC(window=3, cap=4), "aba" + "a").stopped_by == "finished"  # a rest of one is no window


def test_doubling_stops_at_two_equal_votes():
    assert len(solve(Doubling(), "aa" + "?" * 40).drawn) == 2
    assert len(solve(Doubling(), "ab" + "aa" + "?" * 40).drawn) == 4
    assert len(solve(Doubling(), "ab" + "ab" + "aaaa" + "?" * 40).drawn) == 8


def test_anytime_certifies_eight_equal_votes_and_not_seven():
    choice = solve(Anytime(), "a" * 64)
    assert (choice.answer, len(choice.drawn), choice.stopped_by, choice.notes) == (Answer("a"), 8, "certificate", ())
    short = solve(Anytime(cap=7), "a" * 7)
    assert (short.answer, short.stopped_by) == (Answer("a"), "finished")
    assert short.notes == ("no certificate: an e-value of 31.9 for 'a', 50 certify it",)


def test_anytime_looks_past_what_abstains():
    choice = solve(Anytime(), "?".join("a" * 20))
    assert (choice.stopped_by, len(choice.drawn), choice.abstained) == ("certificate", 15, 7)
    nothing = solve(Anytime(cap=3), "???")
    assert (nothing.answer, nothing.notes) == (None, ("no certificate: no votes",))


def mixed(prompt, index: int) -> Reply:
    """Every other answer is b, and those come first: b takes 1 token, a takes 50."""
    return Reply("b", n_tokens=1) if index % 2 else Reply("a", n_tokens=50)


@pytest.mark.parametrize("strategy", [AdaptiveConsistency(cap=12, at_once=8), Anytime(cap=20, at_once=16)])
def test_votes_count_in_the_order_they_were_started_in(strategy):
    choice = solve(strategy, mixed)
    assert choice.stopped_by == "finished"
    assert choice.ballots == {"a": strategy.cap / 2, "b": strategy.cap / 2}


def test_what_is_under_way_is_cancelled_and_counted():
    sampler = Scripted(lambda prompt, index: Reply("a", n_tokens=5 if index < 4 else 50))
    choice = asyncio.run(AdaptiveConsistency(at_once=6)(ask(), Metered(sampler, Ledger())))
    assert (choice.stopped_by, choice.ballots) == ("consensus", {"a": 4})
    assert {completion.finish for completion in choice.drawn} == {"stop", "consensus"}
    assert choice.spent.cancelled > 0
    assert choice.spent.generated == sampler.generated


def test_a_completion_with_less_room_is_no_evidence_but_has_its_vote():
    replies = [Reply("a", n_tokens=5)] * 20
    enough = solve(Anytime(), replies, budget=45, max_tokens=10)  # after seven there are 10 left
    assert (enough.stopped_by, enough.ballots) == ("certificate", {"a": 8})
    less = solve(Anytime(), replies, budget=44, max_tokens=10)  # the eighth starts with 9, the ninth with 4 and is cut
    assert (less.stopped_by, less.ballots) == ("budget", {"a": 8})
    assert (less.answer, len(less.drawn)) == (Answer("a"), 9)


RULE_OF = {
    "Beta ≥ 0.95 (Adaptive-Consistency)": AdaptiveConsistency(),
    "doubling, 75 % agree (its_hub)": Doubling(),
    "window of 5 agrees (ESC)": ESC(),
    "certificate (anytime)": Anytime(cap=40),
}


@pytest.mark.parametrize("rule", RULE_OF)
def test_the_rules_that_the_benchmark_counts_are_those_of_the_strategies(rule):
    rng = np.random.default_rng(9)
    shares = rng.dirichlet([0.6] * 4, size=60)
    given_QN = np.array([rng.choice(4, size=40, p=each) for each in shares])
    stops = RULES[rule](count_votes(given_QN, 4))
    assert 5 < (stops.at_Q > 0).sum() < 60
    for given_N, at, answer in zip(given_QN, stops.at_Q, stops.answer_Q, strict=True):
        choice = solve(RULE_OF[rule], [str(each) for each in given_N])
        assert len(choice.drawn) == (at or 40)
        if at:
            assert choice.answer == Answer(str(answer))


@pytest.mark.parametrize("strategy", [AdaptiveConsistency(), ESC(), Doubling(), Anytime(at_once=3)])
def test_without_budget_there_is_no_answer_and_no_error(strategy):
    choice = solve(strategy, "a" * 64, budget=0)
    assert (choice.answer, choice.drawn, choice.stopped_by) == (None, (), "budget")


@pytest.mark.parametrize("strategy", [AdaptiveConsistency(at_once=2), ESC(), Doubling(), Anytime(at_once=2)])
def test_an_interruption_answers_with_what_there_is(strategy):
    async def go():
        metered = Metered(Scripted(lambda prompt, i: Reply("ab"[i % 2], n_tokens=10)), Ledger())
        metered.watch = lambda kind, chunk: metered.stop() if metered.ledger.spent.generated > 33 else None
        choice = await strategy(ask(), metered)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return choice

    choice = asyncio.run(go())
    assert choice.stopped_by == "interrupted"
    assert choice.spent.generated >= 33


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdaptiveConsistency(threshold=0),
        lambda: AdaptiveConsistency(at_once=0),
        lambda: ESC(window=0),
        lambda: Doubling(share=1.1),
        lambda: Anytime(alpha=0),
        lambda: Anytime(cap=0),
        lambda: weigh_leader({"a": 1}, alpha=1.0),
    ],
)
def test_settings_that_mean_nothing_are_refused(make):
    with pytest.raises(UsageError) as refused:
        make()
    assert "\n" not in str(refused.value)
