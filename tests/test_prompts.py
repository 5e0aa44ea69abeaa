"""Counts per problem, windows of steps and conditions, against slow loops."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from making import evidence_of

from equipoise.measures.answers import AnswerTable
from equipoise.measures.prompts import PromptCounts, conditions, early_rows, group_rows, late_rows, step_windows


def random_rows(seed, n=200):
    rng = np.random.default_rng(seed)
    return [
        {
            "prompt_id": f"p{rng.integers(12)}" if rng.random() < 0.95 else None,
            "group_id": None,
            "answer": None if rng.random() < 0.2 else "abcd"[rng.integers(4)],
            "correct": None if rng.random() < 0.1 else bool(rng.random() < 0.4),
        }
        for _ in range(n)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_a_slow_loop(seed):
    rows = random_rows(seed)
    table = evidence_of(rows).answers
    counts = PromptCounts.of(table)
    names = [table.names["prompt_id"].texts[code] for code in counts.prompt_P]
    assert sorted(names) == sorted({row["prompt_id"] for row in rows} - {None})
    assert len(counts) == len(names)
    for i, name in enumerate(names):
        mine = [row for row in rows if row["prompt_id"] == name]
        verdicts = [row["correct"] for row in mine if row["correct"] is not None]
        assert counts.total_P[i] == len(mine)
        assert counts.drawn_P[i] == len(verdicts)
        assert counts.correct_P[i] == sum(verdicts)
        assert counts.abstained_P[i] == sum(row["answer"] is None for row in mine)
        kinds = slice(counts.offsets[i], counts.offsets[i + 1])
        answers = [table.names["answer"].texts[code] for code in counts.kind_answer[kinds]]
        assert dict(zip(answers, counts.kind_count[kinds], strict=True)) == Counter(
            row["answer"] for row in mine if row["answer"] is not None
        )
        for answer, right, correct in zip(answers, counts.kind_right[kinds], counts.kind_correct[kinds], strict=True):
            judged = [row["correct"] for row in mine if row["answer"] == answer and row["correct"] is not None]
            assert correct == sum(judged)
            if judged:
                assert right == (2 * sum(judged) > len(judged))
            else:
                assert np.isnan(right)


def test_counts_of_nothing():
    counts = PromptCounts.of(AnswerTable())
    assert len(counts) == 0
    assert counts.offsets.tolist() == [0]


def steps_of(rows, mask):
    return sorted({row["step"] for row, kept in zip(rows, mask, strict=True) if kept})


@pytest.mark.parametrize(
    ("steps", "early", "late"),
    [
        (range(10), [0, 1], [8, 9]),  # a fifth of ten steps
        (range(0, 1000, 10), list(range(0, 200, 10)), list(range(800, 1000, 10))),
        ([5, 7], [5], [7]),
        ([1, 2, 3], [1], [3]),
        (range(8), [0, 1], [6, 7]),  # 1.6 steps: two
    ],
)
def test_windows_are_the_first_and_last_fifth_of_the_steps(steps, early, late):
    rows = [{"prompt_id": "p", "step": step} for step in [*steps, *steps]]
    table = evidence_of(rows).answers
    assert steps_of(rows, early_rows(table)) == early
    assert steps_of(rows, late_rows(table)) == late
    (at_late, late_mask), (at_early, early_mask) = step_windows(table)
    assert at_late == {"window": "late", "step": [late[0], late[-1]]}
    assert at_early == {"window": "early", "step": [early[0], early[-1]]}
    np.testing.assert_array_equal(late_mask, late_rows(table))
    np.testing.assert_array_equal(early_mask, early_rows(table))


@pytest.mark.parametrize("step", [None, 4])
def test_a_run_of_one_step_or_none_is_all_late(step):
    table = evidence_of([{"prompt_id": "p", "step": step}] * 3).answers
    assert late_rows(table).all()
    assert not early_rows(table).any()
    [(at, mask)] = step_windows(table)
    assert at == {}
    assert mask.all()


def test_a_rollout_without_a_step_is_in_neither_window_of_a_run_with_steps():
    table = evidence_of([{"prompt_id": "p", "step": step} for step in (1, 2, None)]).answers
    assert late_rows(table).tolist() == [False, True, False]
    assert early_rows(table).tolist() == [True, False, False]


def test_conditions_split_by_all_that_varies_and_name_only_that():
    rows = [
        {"prompt_id": "p", "run_id": "r", "split": split, "budget": budget, "temperature": 0.7}
        for split in ("train", "eval")
        for budget in (None, 100, 200)
        for _ in range(2)
    ]
    cells = conditions(evidence_of(rows).answers)
    expected = {(row["split"], row["budget"]): [] for row in rows}
    for i, row in enumerate(rows):
        expected[row["split"], row["budget"]].append(i)
    assert {(at["split"], at["budget"]): picked.tolist() for at, picked in cells} == expected
    assert all(set(at) == {"split", "budget"} for at, _ in cells)


def test_one_condition_has_nothing_to_name_and_no_rollouts_have_none():
    [(at, rows)] = conditions(evidence_of([{"prompt_id": "p", "split": "eval", "temperature": 0.0}] * 3).answers)
    assert at == {}
    assert rows.tolist() == [0, 1, 2]
    assert conditions(AnswerTable()) == []


def test_rows_are_grouped_like_tuples():
    rng = np.random.default_rng(0)
    columns = [rng.integers(-1, 3, 300), rng.choice([0.5, 2.0, np.nan], 300), np.zeros(300), rng.integers(0, 2, 300)]
    first, index = group_rows(columns)
    keys = [tuple("nan" if value != value else float(value) for value in row) for row in zip(*columns, strict=True)]
    assert len(first) == len(set(keys))
    assert [keys[first[group]] for group in index] == keys
    assert all(keys.index(keys[row]) == row for row in first)
