"""Who is a parent, who emigrates and which islands start again, by hand values and by counting draws."""

from __future__ import annotations

from collections import Counter
from math import exp
from random import Random

import pytest
from asking import candidate, island
from scipy.stats import binomtest, chisquare

from equipoise.errors import UsageError
from equipoise.infer.population import (
    Island,
    boltzmann,
    elites_of,
    migrate,
    pick_diverse,
    pick_parents,
    weakest,
)


def test_boltzmann_worked_by_hand():
    # exp(0), exp(1) and exp(2) at T = 0.5 for scores 0, 0.5 and 1.
    weights = [1, exp(1), exp(2)]
    assert boltzmann([0, 0.5, 1], temperature=0.5) == pytest.approx([w / sum(weights) for w in weights])


def test_boltzmann_ignores_a_constant_and_is_finite_far_below_zero():
    scores = [-3.0, -1.0, -1.5]
    for constant in (-1e6, -7.0, 0.5, 1e6):
        shifted = [score + constant for score in scores]
        assert boltzmann(shifted, temperature=1.0) == pytest.approx(boltzmann(scores, temperature=1.0))
    assert boltzmann([-1e6, 0.0], temperature=1.0) == [0.0, 1.0]
    assert boltzmann([-1e6, -1e6], temperature=1e-3) == [0.5, 0.5]
    with pytest.raises(UsageError, match="above 0"):
        boltzmann([1.0], temperature=0.0)


def test_no_parents_as_often_as_was_asked():
    here, random = island(a=0.1, b=0.2, c=0.3), Random(1)
    n = 3000
    for share in (1 / 6, 1 / 5):
        none = sum(not pick_parents(here, random, most=5, no_parents=share, temperature=1.0) for _ in range(n))
        assert binomtest(none, n, share).pvalue > 1e-3
    assert not pick_parents(here, random, most=5, no_parents=1.0, temperature=1.0)


def test_the_number_of_parents_is_even_and_no_one_comes_twice():
    here, random = island(a=0.1, b=0.2, c=0.3, d=0.4), Random(2)
    drawn = [pick_parents(here, random, most=3, no_parents=0.0, temperature=1.0) for _ in range(3000)]
    assert all(len({parent.answer.text for parent in parents}) == len(parents) for parents in drawn)
    counts = Counter(map(len, drawn))
    assert chisquare([counts[n] for n in (1, 2, 3)]).pvalue > 1e-3
    # More are wanted than there are: all of them.
    assert len(pick_parents(island(a=1, b=2), Random(0), most=1, no_parents=0.0, temperature=1.0)) == 1
    most = [len(pick_parents(island(a=1, b=2), random, most=9, no_parents=0.0, temperature=1.0)) for _ in range(50)]
    assert max(most) == 2
    assert pick_parents(Island(), random, most=3, no_parents=0.0, temperature=1.0) == []


def test_the_first_parent_comes_by_its_score():
    here, random, n = island(a=0.0, b=0.1, c=0.2), Random(3), 6000
    counts = Counter(
        pick_parents(here, random, most=1, no_parents=0.0, temperature=0.1)[0].answer.text for _ in range(n)
    )
    weights = [1, exp(1), exp(2)]
    assert chisquare([counts[name] for name in "abc"], [n * w / sum(weights) for w in weights]).pvalue > 1e-3


def test_the_second_parent_comes_by_its_score_among_those_left():
    # Scores 0, 0 and 9 at T = 0.1: c is first for certain, then a and b are even.
    random, n = Random(4), 2000
    pairs = Counter(
        parents[1].answer.text
        for _ in range(n)
        if len(parents := pick_parents(island(a=0, b=0, c=9), random, most=2, no_parents=0, temperature=0.1)) == 2
    )
    assert set(pairs) == {"a", "b"}
    assert binomtest(pairs["a"], pairs.total()).pvalue > 1e-3


def test_equal_answers_are_one_candidate():
    here = island(a=0.1)
    here.add(candidate("a", 0.9))
    here.add(candidate("b", 0.2))
    assert {text: one.score for text, one in here.members.items()} == {"a": 0.1, "b": 0.2}


def test_migration_clones_the_best_to_the_next_and_wraps():
    islands = [island(a=0.1, b=0.9, c=0.5), island(d=0.3), island(), island(b=0.9, e=0.8)]
    migrate(islands, 0, emigrants=2)
    assert list(islands[0].members) == ["a", "b", "c"]
    assert list(islands[1].members) == ["d", "b", "c"]
    migrate(islands, 3, emigrants=5)
    assert list(islands[3].members) == ["b", "e"]
    assert list(islands[0].members) == ["a", "b", "c", "e"]  # b was there
    alone = [island(a=0.1)]
    migrate(alone, 0, emigrants=5)
    assert list(alone[0].members) == ["a"]


def test_the_weakest_islands_have_the_lowest_mean():
    islands = [island(a=0.9, b=0.1), island(c=0.4), island(d=0.8, e=0.9, f=0.0), island(g=-3)]
    # Means 0.5, 0.4, 0.5667, −3.
    assert weakest(islands, 2) == [3, 1]
    assert weakest([island(a=1), Island(), island(b=0)], 1) == [1]
    assert weakest([island(a=1)], 2) == []
    assert sorted(weakest(islands, 9)) == [0, 1, 3]  # the best one stays


def test_elites_are_the_best_of_all_and_no_answer_comes_twice():
    islands = [island(a=0.1, b=0.9), island(b=0.9, c=0.5), island(d=0.7)]
    assert [one.answer.text for one in elites_of(islands, 3)] == ["b", "d", "c"]


def test_diverse_elites_begin_with_the_best_and_differ():
    best = [candidate(text, 1.0) for text in ("ABCDEF", "ABCDFE", "FEDCBA", "GHIJKL")]
    # GHIJKL shares nothing with ABCDEF; then FEDCBA shares less with both than ABCDFE does.
    assert [one.answer.text for one in pick_diverse(best, 3)] == ["ABCDEF", "GHIJKL", "FEDCBA"]
    assert [one.answer.text for one in pick_diverse(best, 3, keep=2)] == ["ABCDEF", "ABCDFE", "GHIJKL"]
    assert len(pick_diverse(best, 9)) == 4
