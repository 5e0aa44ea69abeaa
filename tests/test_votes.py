from __future__ import annotations

from collections import Counter

import pytest

from equipoise.base import Answer
from equipoise.errors import UsageError
from equipoise.measures.votes import tally_votes


def answers(texts):
    return [None if text == "?" else Answer(text) for text in texts]


def test_unreadable_answers_never_form_a_class():
    votes = tally_votes(answers("??7?4?4"))
    assert votes.winner == Answer("4")
    assert votes.abstained == 4
    assert votes.counts == {"7": 1, "4": 2}
    assert votes.tied == ()


def test_all_abstain():
    votes = tally_votes(answers("???"))
    assert votes.winner is None
    assert votes.abstained == 3
    assert not votes.counts
    assert tally_votes([]).winner is None


def test_the_winner_is_the_first_answer_seen_with_its_place_in_the_text():
    first, second = Answer("4", (3, 4)), Answer("4", (9, 10))
    assert tally_votes([first, second]).winner is first


def test_a_tie_goes_to_the_first_seen_without_a_seed():
    votes = tally_votes(answers("bab?a"))
    assert votes.winner == Answer("b")
    assert set(votes.tied) == {"a", "b"}


def test_a_tie_with_a_seed_is_uniform_reproducible_and_blind_to_order():
    winners = Counter(tally_votes(answers("cabbac"), seed=seed).winner.text for seed in range(3000))
    assert set(winners) == {"a", "b", "c"}
    assert min(winners.values()) > 850  # 1,000 expected, standard deviation 26
    for seed in range(20):
        one, two = (tally_votes(answers(order), seed=seed).winner for order in ("cabbac", "abccba"))
        assert one == two


def test_weights():
    assert tally_votes(answers("aab"), [0.2, 0.2, 0.5]).winner == Answer("b")
    assert tally_votes(answers("aab"), [1, 1, 1]).counts == tally_votes(answers("aab")).counts
    for scale in (1e-6, 1.0, 3e4):
        assert tally_votes(answers("aab"), [0.3 * scale, 0.3 * scale, 0.5 * scale]).winner == Answer("a")


def test_sums_that_differ_by_rounding_tie():
    assert set(tally_votes(answers("aab"), [0.1, 0.2, 0.3]).tied) == {"a", "b"}  # 0.1 + 0.2 > 0.3 in floats


def test_an_abstention_takes_its_weight_with_it():
    assert tally_votes(answers("?a"), [9.0, 0.1]).winner == Answer("a")


def test_weights_must_fit():
    with pytest.raises(UsageError, match="3 answers, 2 weights"):
        tally_votes(answers("aab"), [1, 2])
    with pytest.raises(UsageError, match="finite"):
        tally_votes(answers("ab"), [1, float("nan")])
