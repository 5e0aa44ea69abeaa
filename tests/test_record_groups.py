"""`Groups`, against a loop that collects rows in dicts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from equipoise.errors import UsageError
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.groups import Groups

ROWS = [
    {"group_id": "b", "prompt_id": "p2", "reward": 1.0, "correct": True, "answer": "4", "n_tokens": 7, "finish_reason": "stop"},
    {"group_id": "a", "prompt_id": "p1", "reward": None, "correct": None, "answer": None, "n_tokens": 3, "finish_reason": "length"},
    {"group_id": "b", "prompt_id": "p2", "reward": 0.5, "correct": False, "answer": "5", "n_tokens": None, "finish_reason": None},
    {"group_id": "a", "prompt_id": "p1", "reward": 0.0, "correct": False, "answer": "4", "n_tokens": 1, "finish_reason": "stop"},
    {"group_id": "b", "prompt_id": "p2", "reward": 2.0, "correct": True, "answer": "4", "n_tokens": 2, "finish_reason": "stop"},
]  # fmt: skip


def test_unequal_groups_are_padded_and_unknown_cells_are_nan():
    groups = Groups.of(Rollouts.of_rows(ROWS), degenerate=np.array([0, 1, 0, 0, 1]))
    nan = np.nan
    assert groups.prompt_ids_P == ("p2", "p1")
    np.testing.assert_array_equal(groups.keep_PG, [[True, True, True], [True, True, False]])
    np.testing.assert_array_equal(groups.reward_PG, [[1.0, 0.5, 2.0], [nan, 0.0, nan]])
    np.testing.assert_array_equal(groups.correct_PG, [[1, 0, 1], [nan, 0, nan]])
    np.testing.assert_array_equal(groups.n_tokens_PG, [[7, nan, 2], [3, 1, nan]])
    np.testing.assert_array_equal(groups.truncated_PG, [[0, nan, 0], [1, 0, nan]])
    np.testing.assert_array_equal(groups.degenerate_PG, [[0, 0, 1], [1, 0, nan]])
    np.testing.assert_array_equal(groups.row_PG, [[0, 2, 4], [1, 3, -1]])
    code = groups.answer_PG
    assert code[0, 0] == code[0, 2] == code[1, 1] != code[0, 1]
    assert code[1, 0] == code[1, 2] == -1
    assert groups.confidence_PG is None


def test_values_by_group_go_back_to_their_rows():
    groups = Groups.of(Rollouts.of_rows(ROWS))
    back = groups.to_rows(groups.reward_PG)
    np.testing.assert_array_equal(back, [1.0, np.nan, 0.5, 0.0, 2.0])
    with pytest.raises(UsageError, match="rows are unknown"):
        Groups(("p",), np.ones((1, 1), bool)).to_rows(np.ones((1, 1)))


@pytest.mark.parametrize("seed", range(5))
def test_groups_equal_a_loop_over_rows_cut_into_batches(seed):
    rng = np.random.default_rng(seed)
    rows = [
        {
            "run_id": str(rng.choice(["r", "s"])), "split": rng.choice([None, "train"]), "step": [None, 1, 2][rng.integers(3)],
            "budget": [None, 64][rng.integers(2)], "group_id": f"g{rng.integers(3)}", "reward": float(i),
        }
        for i in range(60)
    ]  # fmt: skip
    expected = {}
    for row in rows:
        key = tuple(row[name] for name in ("run_id", "split", "step", "budget", "group_id"))
        expected.setdefault(key, []).append(row["reward"])
    cuts = [0, 7, 8, 31, 60]
    groups = Groups.of(Rollouts.of_rows(rows[a:b]) for a, b in pairwise(cuts))
    found = [row[keep].tolist() for row, keep in zip(groups.reward_PG, groups.keep_PG, strict=True)]
    assert found == list(expected.values())


def test_rows_without_a_group_are_refused_and_none_at_all_is_an_empty_table():
    with pytest.raises(UsageError, match="neither group_id nor prompt_id"):
        Groups.of(Rollouts.of_rows([{"reward": 1.0}]))
    with pytest.raises(UsageError, match="2 entries for 1 rollouts"):
        Groups.of(Rollouts.of_rows([{"prompt_id": "p"}]), degenerate=np.zeros(2))
    assert Groups.of([]).keep_PG.shape == (0, 0)
    assert Groups.of(Rollouts.of_rows([{"prompt_id": "p"}] * 2)).keep_PG.tolist() == [[True, True]]
