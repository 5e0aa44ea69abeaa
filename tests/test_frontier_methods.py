"""What shapes a step for the frontier of pass@1 and pass@k: schedules, each distinct right answer paid once, weights of right and wrong."""

from __future__ import annotations

from itertools import permutations
from math import sqrt

import numpy as np
import pytest
from tiny_training import read_metrics

from equipoise.base import Tally
from equipoise.errors import UsageError
from equipoise.shaping.advantages import group_mean, group_std
from equipoise.shaping.anneal import Anneal
from equipoise.shaping.distinct_once import distinct_once
from equipoise.shaping.weighted_reinforce import weighted_reinforce
from equipoise.training.recipe import Method
from equipoise.training.shape import Shaper

NAN = np.nan


# ---------------------------------------------------------------- schedules


def values_of(schedule, n):
    found = []
    for _ in range(n):
        schedule.observe(Tally(1, 0.3, 0.09))
        found.extend(schedule.settings().values())
    return found


def test_a_line_begins_at_its_start_and_stays_at_its_end():
    line = Anneal(setting="kl.coef", start=0.1, end=0.02, over=4)
    assert line.settings() == {"kl.coef": 0.1}
    assert values_of(line, 7) == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02, 0.02, 0.02])


def test_a_factor_spends_as_many_steps_on_every_halving():
    halving = Anneal(setting="passk_training.k", start=16, end=1, over=8, by="factor", whole=True)
    # 16 · 2^(−n/2): 16, 11.3, 8, 5.7, 4, 2.8, 2, 1.4, 1
    found = values_of(halving, 10)
    assert found == [16, 11, 8, 6, 4, 3, 2, 1, 1, 1]
    assert all(isinstance(k, int) for k in found)


def test_a_schedule_goes_on_where_it_was_saved():
    whole, first = (Anneal(setting="kl.coef", start=1, end=0, over=10) for _ in range(2))
    expected = values_of(whole, 8)
    values_of(first, 3)
    second = Anneal(setting="kl.coef", start=1, end=0, over=10)
    second.restore(first.state())
    assert values_of(second, 5) == expected[3:]
    with pytest.raises(UsageError, match="a state of anneal has seen"):
        second.restore({})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"setting": "coef"}, "moves a setting of a method, kl.coef say, found 'coef'"),
        ({"by": "cosine"}, "unknown way to anneal 'cosine'"),
        ({"over": 0}, "needs over above 0"),
        ({"by": "factor", "end": 0.0}, "needs end above 0"),
        ({"start": float("nan")}, "finite"),
    ],
)
def test_a_schedule_that_means_nothing_is_refused(changed, words):
    with pytest.raises(UsageError, match=words):
        Anneal(**{"setting": "kl.coef", "start": 1.0, "end": 0.5, "over": 5} | changed)


def test_k_of_the_advantage_and_the_weight_of_a_bonus_move_and_no_other_part_hears_of_it():
    anneal = "equipoise.shaping.anneal:Anneal:setting=batch_exploration.weight,start=1,end=0,over=2"
    method = Method(
        advantage="passk_training:k=4",
        bonuses=("batch_exploration",),
        controllers=("anneal_k:start=4,over=2", anneal, "anneal_kl:start=0.5"),
    )
    shaper = Shaper(method)
    assert shaper.settings() == {"kl.coef": 0.5}
    shaper.observe(Tally(1, 0.3, 0.09))
    assert shaper._own() == {"passk_training.k": 4, "batch_exploration.weight": 1.0}


def test_a_setting_that_an_advantage_does_not_have_cannot_move():
    spec = "equipoise.shaping.anneal:Anneal:setting=group_std.k,start=4,end=1,over=2"
    with pytest.raises(UsageError, match=r"a controller moves group_std\.k, and group_std has no such setting"):
        Shaper(Method(controllers=(spec,)))


def test_a_run_anneals_k_and_the_kl(run):
    folder = run(
        method={"advantage": "passk_training:k=6", "controllers": ("anneal_k:start=6,over=2", "anneal_kl:start=0.4,end=0.2,over=2")},
        learning={"steps": 4},
    )  # fmt: skip
    lines = read_metrics(folder)[1:]
    assert [line["passk_training.k"] for line in lines] == [6, 2, 1, 1]  # √6 = 2.4
    assert [line["kl.coef"] for line in lines] == pytest.approx([0.4, 0.3, 0.2, 0.2])
    assert all(line["kl_to_reference"] >= 0 for line in lines)


def test_a_constant_k_is_the_schedule_that_does_not_move(run):
    fixed = run(method={"advantage": "passk_training:k=3"})
    moved = run(method={"advantage": "passk_training:k=6", "controllers": ("anneal_k:start=3,end=3",)})
    drop = "passk_training.k"
    assert [{k: v for k, v in line.items() if k != drop} for line in read_metrics(moved)] == read_metrics(fixed)


def test_a_kl_of_0_is_none_bit_for_bit(run):
    plain, zero = run(), run(method={"controllers": ("anneal_kl:start=0,end=0",)})
    drop = ("kl.coef", "kl_to_reference")
    assert [{k: v for k, v in line.items() if k not in drop} for line in read_metrics(zero)] == read_metrics(plain)


# ---------------------------------------------------------------- each distinct right answer once


def test_right_completions_with_one_answer_share_its_reward():
    # a a b wrong | unread and right, a, a, not judged
    answer_PG = np.array([[0, 0, 1, 2], [-1, 0, 0, 0]])
    correct_PG = np.array([[1, 1, 1, 0], [1, 1, 1, NAN]])
    keep_PG = np.ones((2, 4), dtype=bool)
    found = np.nan_to_num(correct_PG) + distinct_once(correct_PG, answer_PG, keep_PG)
    assert found.tolist() == [[0.5, 0.5, 1, 0], [1, 0.5, 0.5, 0]]
    assert found[0].sum() == 2  # distinct right answers
    half = distinct_once(correct_PG, answer_PG, keep_PG, weight=0.5)
    assert half[0].tolist() == [-0.25, -0.25, 0, 0]
    assert not distinct_once(correct_PG, answer_PG, keep_PG, weight=0.0).any()


def test_padding_and_wrong_completions_have_no_part_in_a_count():
    answer_PG, correct_PG = np.array([[0, 0, 0, 0]]), np.array([[1.0, 0.0, 1.0, 1.0]])
    keep_PG = np.array([[True, True, True, False]])
    assert distinct_once(correct_PG, answer_PG, keep_PG).tolist() == [[-0.5, 0, -0.5, 0]]


def advantages(answers, right, advantage):
    correct_PG = np.array([[float(r) for r in right]])
    keep_PG = np.ones(correct_PG.shape, dtype=bool)
    reward_PG = correct_PG + distinct_once(correct_PG, np.array([answers]), keep_PG)
    return advantage(reward_PG, keep_PG)[0]


def test_group_relative_advantages_worked_by_hand():
    # One right answer, twice among 4: rewards ½ ½ 0 0 or 1 1 0 0, and their advantages are the same.
    keep = np.ones((1, 4), dtype=bool)
    plain = group_std(np.array([[1.0, 1, 0, 0]]), keep)[0]
    np.testing.assert_allclose(advantages([0, 0, 1, 2], [1, 1, 0, 0], group_std), plain, atol=1e-5)
    # a thrice and b once among 8, D = 2: the mean is 2/8, so a gets ⅓ − ¼, b 1 − ¼ and each wrong one −¼.
    found = advantages([0, 0, 0, 1, 2, 3, 4, 5], [1, 1, 1, 1, 0, 0, 0, 0], group_mean)
    np.testing.assert_allclose(found, [1 / 12] * 3 + [3 / 4] + [-1 / 4] * 4)
    # a five times and b once among 6: a is pushed down (1/5 < 2/6), wherever the spread divides.
    found = advantages([0, 0, 0, 0, 0, 1], [1] * 6, group_mean)
    np.testing.assert_allclose(found, [1 / 5 - 1 / 3] * 5 + [2 / 3])
    # All right and all alike: nothing to learn.
    assert not advantages([0] * 5, [1] * 5, group_std).any()


def test_a_share_is_the_mean_over_all_orders_of_being_the_first():
    """Shapley's value of a completion in the number of distinct right answers, by enumeration."""
    answers, right = [0, 0, 1, 2, 0], [1, 1, 1, 0, 1]
    value = np.zeros(5)
    orders = list(permutations(range(5)))
    for order in orders:
        seen = set()
        for i in order:
            if right[i] and answers[i] not in seen:
                seen.add(answers[i])
                value[i] += 1
    correct_PG = np.array([right], dtype=float)
    found = correct_PG + distinct_once(correct_PG, np.array([answers]), np.ones((1, 5), dtype=bool))
    np.testing.assert_allclose(found[0], value / len(orders))


# ---------------------------------------------------------------- weights of right and wrong


def test_right_and_wrong_have_weights_of_their_own():
    correct_PG, keep_PG = np.array([[1, 0, NAN, 1]]), np.array([[True, True, True, False]])
    assert weighted_reinforce(correct_PG, keep_PG, up=0.25).tolist() == [[0.25, -1, 0, 0]]
    assert weighted_reinforce(correct_PG, keep_PG).tolist() == [[0.1, -1, 0, 0]]


def test_the_lone_success_of_the_docstrings():
    # GRPO gives a lone success among 16 the unbiased (1 − 1/16)/√(1/16) = 3.75; paid once it is the same.
    right = [1] + [0] * 15
    assert advantages([0, *range(1, 16)], right, group_std)[0] == pytest.approx(15 / 16 * 4, abs=1e-4)
    assert sqrt(15 / 16 / 15) == 0.25  # its unbiased standard deviation
