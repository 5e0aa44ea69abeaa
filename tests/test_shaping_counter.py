"""The outcome counter, against a plain `collections.Counter`."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from equipoise.errors import UsageError
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.groups import Groups
from equipoise.shaping.counter import OutcomeCounter, answers_of
from equipoise.shaping.exploration import rarity, ucb_constant
from equipoise.text.answers import canonical, read_answer


def grid(*groups: list[str | None]) -> np.ndarray:
    answers = np.full((len(groups), max(map(len, groups))), None, dtype=object)
    for p, group in enumerate(groups):
        answers[p, : len(group)] = group
    return answers


def test_a_step_reads_the_counts_before_it_and_is_then_counted():
    counter = OutcomeCounter()
    first = grid(["7", "7", "8", None])
    np.testing.assert_array_equal(counter.visit(["a"], first), [[0, 0, 0, np.nan]])
    np.testing.assert_array_equal(rarity(counter.count(["a"], first)), [[1 / np.sqrt(2), 1 / np.sqrt(2), 1, np.nan]])
    np.testing.assert_array_equal(counter.visit(["a"], grid(["8", "7", "9"])), [[1, 2, 0]])
    np.testing.assert_array_equal(
        counter.count(["a", "b"], grid(["7", "8", "9"], ["7"])), [[3, 2, 1], [0, np.nan, np.nan]]
    )


def test_the_order_inside_a_step_does_not_matter():
    one, other = OutcomeCounter(), OutcomeCounter()
    # The same problem twice in one step: neither group sees the other's answers in its bonus.
    np.testing.assert_array_equal(one.visit(["a", "a"], grid(["7", "8"], ["7", "7"])), np.zeros((2, 2)))
    np.testing.assert_array_equal(other.visit(["a", "a"], grid(["7", "7"], ["8", "7"])), np.zeros((2, 2)))
    assert one.state() == other.state()
    assert one.count(["a"], grid(["7", "8"])).tolist() == [[3, 1]]


def test_equal_answers_share_a_counter():
    counter = OutcomeCounter()
    counter.observe(["a"], grid([canonical(raw) for raw in ("1/2", "0.5", r"\frac12", r"$\dfrac{1}{2}$", "0.333")]))
    assert counter.count(["a"], grid([read_answer(r"so \boxed{\frac{1}{2}}").text, canonical("1/3")])).tolist() == [
        [4, 0]
    ]


def test_evaluation_does_not_move_it():
    counter = OutcomeCounter()
    counter.observe(["a"], grid(["7"]))
    before = counter.state()
    counter.count(["a", "b"], grid(["7", "9"], ["1", "2"]))
    assert counter.state() == before


@pytest.mark.parametrize("seed", range(3))
def test_counts_equal_a_loop_and_add_over_workers_in_any_order(seed):
    rng = np.random.default_rng(seed)
    steps = [(list(rng.choice(["a", "b", "c"], 4)), grid(*[[str(x) if x else None for x in rng.integers(0, 5, 6)] for _ in range(4)])) for _ in range(5)]  # fmt: skip
    truth = Counter((p, a) for ids, answers in steps for p, row in zip(ids, answers, strict=True) for a in row if a)
    alone, shared, backwards = OutcomeCounter(), OutcomeCounter(), OutcomeCounter()
    for ids, answers in steps:
        alone.observe(ids, answers)
        parts = [OutcomeCounter(), OutcomeCounter()]
        for worker, part in enumerate(parts):
            part.observe(ids[worker::2], answers[worker::2])
        for part in parts:
            shared.merge(part)
        for part in reversed(parts):
            backwards.merge(part)
    counts = alone.state()["counts"]
    assert {(p, a): n for p, held in counts.items() for a, n in held.items()} == dict(truth)
    assert alone.state() == shared.state() == backwards.state()


def test_state_is_plain_json_and_restores():
    counter = OutcomeCounter(most_answers=2)
    counter.observe(["a", "b"], grid(["1", "1", "2", "3"], ["é", None]))
    text = json.dumps(counter.state(), allow_nan=False)
    again = OutcomeCounter()
    again.restore(json.loads(text))
    assert again.state() == counter.state()
    step = ["a", "b"], grid(["3", "4"], ["é", "é"])
    np.testing.assert_array_equal(again.visit(*step), counter.visit(*step))
    assert again.state() == counter.state()


def test_the_cap_keeps_the_frequent_answers_and_never_makes_an_old_one_look_new():
    counter = OutcomeCounter(most_answers=2)
    counter.observe(["a"], grid(["1"] * 5 + ["2"] * 3 + ["3"] * 2 + ["4"]))
    assert counter.state() == {"most_answers": 2, "counts": {"a": {"1": 5, "2": 3}}, "floors": {"a": 2}}
    # 3 and 4 were dropped with counts 2 and 1: both, and one never seen, now read 2.
    assert counter.count(["a"], grid(["1", "2", "3", "4", "new"])).tolist() == [[5, 3, 2, 2, 2]]
    counter.observe(["a"], grid(["3", "3"]))  # 2 + 2 = 4 pushes out 2
    assert counter.state()["counts"] == {"a": {"1": 5, "3": 4}}
    assert counter.state()["floors"] == {"a": 3}


def test_floors_add_when_capped_counters_merge():
    one, other = OutcomeCounter(most_answers=2), OutcomeCounter(most_answers=2)
    one.observe(["a"], grid(["1"] * 5 + ["2"] * 3 + ["3"] * 2))  # drops 3, seen twice
    other.observe(["a"], grid(["1"] * 4 + ["2"] * 3 + ["3"]))  # drops 3, seen once
    one.merge(other)
    assert one.state() == {"most_answers": 2, "counts": {"a": {"1": 9, "2": 6}}, "floors": {"a": 3}}


@pytest.mark.parametrize("seed", range(5))
def test_under_the_cap_rule_a_count_is_too_high_by_at_most_the_floor(seed):
    rng = np.random.default_rng(seed)
    counter, other, truth = OutcomeCounter(most_answers=4), OutcomeCounter(most_answers=4), Counter()
    for step in range(30):
        answers = grid([str(a) for a in rng.geometric(0.15, 8)])
        (other if step % 3 == 0 else counter).observe(["a"], answers)
        truth.update(answers[0])
    counter.merge(other)
    state = counter.state()
    assert len(state["counts"]["a"]) == 4
    floor = state["floors"]["a"]
    for answer, n in truth.items():
        read = counter.count(["a"], grid([answer]))[0, 0]
        assert n <= read <= n + floor


def test_answers_of_rollouts_go_to_their_groups():
    rows = [{"group_id": g, "prompt_id": p, "answer": a} for g, p, a in (("x", "p", "1"), ("y", "q", None), ("x", "p", "2"), ("y", "q", "3"), ("x", "p", None))]  # fmt: skip
    groups = Groups.of(Rollouts.of_rows(rows))
    answers = answers_of(groups, [row["answer"] for row in rows])
    assert answers.tolist() == [["1", "2", None], [None, "3", None]]
    counter = OutcomeCounter()
    visits = counter.visit(groups.prompt_ids_P, answers)
    bonus = ucb_constant(visits, groups.keep_PG, None, weight=0.2, baseline=0.5, unless_all_right=False)
    np.testing.assert_allclose(bonus, [[0.1, 0.1, 0], [0, 0.1, 0]])
    with pytest.raises(UsageError, match="5 rollouts, 2 answers"):
        answers_of(groups, ["1", "2"])
    with pytest.raises(UsageError, match="rows are unknown"):
        answers_of(Groups(("p",), np.ones((1, 1), bool)), ["1"])


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: OutcomeCounter(most_answers=0), "at least 1 answer"),
        (lambda: OutcomeCounter().observe([None], grid(["1"])), "prompt_id"),
        (lambda: OutcomeCounter().observe(["a", "b"], grid(["1"])), "2 problems, answers of shape (1, 1)"),
        (lambda: OutcomeCounter().count(["a"], np.array(["1"], dtype=object)), "answers of shape (1,)"),
        (lambda: OutcomeCounter().restore({"counts": {}}), "not the state of an outcome counter"),
        (lambda: OutcomeCounter().restore({"most_answers": 2, "counts": [1], "floors": {}}), "not the state"),
        (lambda: OutcomeCounter().merge(OutcomeCounter(most_answers=9)), "share most_answers: 4096 here, 9 there"),
    ],
)
def test_bad_input_is_told_in_one_line(ask, message):
    with pytest.raises(UsageError) as caught:
        ask()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
