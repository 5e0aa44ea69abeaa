"""The vote that stops when it is settled, against exact enumeration of every order in which votes can come."""

from __future__ import annotations

import asyncio
from collections import Counter
from fractions import Fraction
from itertools import product
from math import comb, exp, inf, log

import pytest

from equipoise.base import Answer, Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.settled import Race, Settled
from equipoise.samplers.scripted import Scripted


def solve(strategy, replies):
    def read(completion):
        return Answer(completion.text) if completion.text.isalpha() else None

    sampler = Scripted(replies)
    question = Question("q", "q", read, Sampling(max_tokens=4))
    return asyncio.run(strategy(question, Metered(sampler, Ledger()))), sampler


def evidence(votes, cap):
    """After every vote; a dot abstains."""
    race = Race(cap)
    return [race.add(None if vote == "." else vote) for vote in votes]


def test_evidence_by_hand():
    # Six votes, three for a. Bets begin at a's second vote. Only M = 6 leaves it open: with fewer, three are more than half.
    # P(3,0|K) = C(3,K-3)/C(6,K) is 1/20, 1/5, 1/2, 1 for K = 3 … 6: E(3,0) = (1/5 + 1/2 + 1)/3 · 20 = 34/3.
    # P(2,0|K) = C(4,K-2)/C(6,K) is 1/5, 2/5, 2/3, 1: E(2,0) = (2/5 + 2/3 + 1)/3 · 5 = 31/9. Money: (34/3)/(31/9) = 102/31.
    one, two, three = evidence("aaa", 6)
    assert (one, two, exp(three)) == (0.0, 0.0, pytest.approx(102 / 31))
    # A fourth vote of six cannot be overtaken; nor three with one abstention and two to come.
    assert evidence("aaaa", 6)[-1] == inf
    assert evidence("aaa.", 6)[-1] == inf
    assert evidence("..", 6) == [-inf, -inf]
    assert evidence("a", 1) == [inf]


def slow_evidence(votes, cap):
    """The bets one by one, in fractions: for every answer, spell and M the chance of the next vote under either hypothesis."""

    def next_is_leader(a, b, m, ks):
        """P(the next of M votes is the leader's) with K uniform over `ks`, given a and b in order."""
        weights = [Fraction(comb(m - a - b, k - a) if k >= a and m - k >= b else 0, comb(m, k)) for k in ks]
        total = sum(weights)
        return sum(w * Fraction(k - a, m - a - b) for w, k in zip(weights, ks, strict=True)) / total if total else None

    def money(bets, a, b, left):
        """The least product over M. `bets`: for each vote of the pair in this spell, the votes before it and whether the leader got it."""
        worst = None
        for m in range(a + b, a + b + left + 1):
            half, product_ = m // 2, Fraction(1)
            if a > half:
                continue
            for before_a, before_b, won in bets:
                null = Fraction(half - before_a, m - before_a - before_b)
                alt = next_is_leader(before_a, before_b, m, range(half + 1, m + 1))
                if alt is None:
                    product_ = Fraction(0)
                    break
                product_ *= alt / null if won else (1 - alt) / (1 - null)
            worst = product_ if worst is None else min(worst, product_)
        return worst

    names = sorted({v for v in votes if v != "."})
    found = []
    for end in range(1, len(votes) + 1):
        left, values = cap - end, []
        final = Counter(v for v in votes[:end] if v != ".")
        if not final:
            found.append(None)
            continue
        for other in [*names, "unseen"]:
            wealth, counts, leader, bets = Fraction(1), Counter(), None, []
            for at, vote in enumerate(votes[:end], start=1):
                if vote == ".":
                    continue
                betting = leader not in (None, other) and counts[leader] >= 2
                if betting and vote in (leader, other):
                    bets.append((counts[leader], counts[other], vote == leader))
                counts[vote] += 1
                if leader is None or (vote != leader and counts[vote] > counts[leader]):
                    if bets:
                        least = money(bets, counts[leader], counts[other], cap - at)
                        wealth *= 1 if least is None else least
                    leader, bets = vote, []
            if other == leader or final[leader] - final[other] > left:
                continue
            values.append(wealth * (money(bets, counts[leader], counts[other], left) if bets else 1))
        found.append(min(values, default=inf))
    return found


@pytest.mark.parametrize(
    "votes", ["aaaaa", "aabaa", "abbab.b", "abcabcaac", "abbaaab", "..aab.a", "abbbaaaa", "baacbb", "abbabaac"]
)
@pytest.mark.parametrize("more", [0, 1, 4, 10])
def test_evidence_is_that_of_the_bets_one_by_one(votes, more):
    cap = len(votes) + more
    for found, exact in zip(evidence(votes, cap), slow_evidence(votes, cap), strict=True):
        if exact in (None, 0):
            assert found == -inf
        elif exact == inf:
            assert found == inf
        else:
            assert exp(found) == pytest.approx(float(exact), rel=1e-9)


def test_error_holds_for_every_vote_of_seven():
    # Every order of every way in which seven completions can vote for three answers or abstain.
    wrong = {alpha: Counter() for alpha in (0.3, 0.6, 0.9)}
    orders = Counter()
    for votes in product("abc.", repeat=7):
        whole = tuple(sorted(votes))
        orders[whole] += 1
        counts = Counter(vote for vote in votes if vote != ".")
        leaders = {vote for vote, n in counts.items() if n == max(counts.values())}
        race, going = Race(7), set(wrong)
        for vote in votes:
            log_e = race.add(None if vote == "." else vote)
            for alpha in [alpha for alpha in going if log_e >= -log(alpha)]:
                going.discard(alpha)
                wrong[alpha][whole] += race.leader not in leaders
    worst = {alpha: max(n / orders[whole] for whole, n in found.items()) for alpha, found in wrong.items()}
    assert all(share <= alpha for alpha, share in worst.items()), worst
    assert worst[0.9] > 0.05  # the bound is put to a test


def test_for_ever_more_to_come_the_bets_are_on_a_fair_coin():
    # E(a, b) = 2^{a+b+1} ∫_½^1 θ^a (1−θ)^b dθ, of which E(a, 0) = (2^{a+1} − 1)/(a + 1): here since (2, 0), E = 7/3.
    assert exp(evidence("aaaaaaaa", 1500)[-1]) == pytest.approx((511 / 9) / (7 / 3), rel=0.03)


def test_stops_and_stands_for_the_vote_at_the_cap():
    choice, sampler = solve(Settled(alpha=0.05, cap=64), ["a"] * 64)
    assert (choice.answer.text, choice.stopped_by) == ("a", "certificate")
    assert len(choice.drawn) == sampler.generated == 8
    # Of 8 votes 5 are the majority: with a small alpha it is certain then, and no earlier.
    choice, sampler = solve(Settled(alpha=1e-9, cap=8), ["a"] * 8)
    assert (choice.answer.text, len(choice.drawn), choice.stopped_by) == ("a", 5, "certificate")


def test_abstentions_use_up_votes_and_cast_none():
    choice, _ = solve(Settled(alpha=1e-9, cap=8), ["?", "?", "?", "?", "a", "a", "a", "b"])
    # After four abstentions four are left: 3 to 0 with one to come is settled.
    assert (choice.answer.text, len(choice.drawn), choice.abstained) == ("a", 7, 4)
    choice, _ = solve(Settled(cap=4), ["?", "?", "?", "?"])
    assert (choice.answer, choice.stopped_by) == (None, "finished")


@pytest.mark.parametrize("settings", [{"alpha": 0}, {"alpha": 1}, {"cap": 0}, {"at_once": 0}])
def test_bad_settings(settings):
    with pytest.raises(UsageError):
        Settled(**settings)
