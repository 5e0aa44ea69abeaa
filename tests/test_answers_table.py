"""The answer table: what it holds of each rollout, whose word counts as the verdict, and when texts are read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from equipoise.measures.answers import UNKNOWN, AnswerCounter, AnswerTable, asks_expression
from equipoise.measures.evidence import Options, collect
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.run import Run, RunInfo

BOXED = r"so the answer is \boxed{%s}"


def count(*batches, solved_at=None, read_texts=True) -> AnswerTable:
    counter = AnswerCounter(solved_at=solved_at, read_texts=read_texts)
    for rows in batches:
        counter.add(Rollouts.of_rows(rows))
    return counter.table()


def decoded(table: AnswerTable) -> list[dict]:
    """Every row as plain values, None for what is not known."""
    rows = []
    for i in range(len(table)):
        row = {name: None if math.isnan(values[i]) else float(values[i]) for name, values in table.numbers.items()}
        for name, codes in table.codes.items():
            row[name] = None if codes[i] == UNKNOWN else table.names[name].texts[codes[i]]
        rows.append(row | {"correct": None if math.isnan(table.correct[i]) else table.correct[i] == 1})
    return rows


def many_rows(seed=0, n=60):
    rng = np.random.default_rng(seed)

    def maybe(value):
        return None if rng.random() < 0.2 else value

    return [
        {
            "run_id": maybe(str(rng.choice(["a", "b"]))),
            "split": maybe("train"),
            "strategy": maybe(str(rng.choice(["single", "vote"]))),
            "env": maybe("gsm8k"),
            "group_id": f"g{rng.integers(5)}",
            "prompt_id": f"p{rng.integers(5)}",
            "finish_reason": maybe(str(rng.choice(["stop", "length"]))),
            "step": maybe(int(rng.integers(9))),
            "sample_index": int(rng.integers(4)),
            "budget": maybe(int(rng.choice([1000, 2000]))),
            "temperature": maybe(0.7),
            "reward": maybe(float(rng.random())),
            "confidence": maybe(float(rng.random())),
            "n_tokens": maybe(int(rng.integers(900))),
            "n_thinking": maybe(3),
            "format_ok": maybe(bool(rng.integers(2))),
            "turn": maybe(1),
            "answer": maybe(str(rng.choice(["7", "8", "x+1", "yes"]))),
            "correct": maybe(bool(rng.integers(2))),
        }
        for _ in range(n)
    ]


def test_every_scalar_of_every_row_is_kept_and_unknown_stays_unknown():
    rows = many_rows()
    expected = [
        {name: float(value) if isinstance(value, int | float) else value for name, value in row.items()} for row in rows
    ]
    for row in expected:
        row["correct"] = None if row["correct"] is None else row["correct"] == 1
    assert decoded(count(rows[:17], rows[17:18], rows[18:])) == expected
    empty = decoded(count([{"prompt_id": "p"}]))[0]
    assert {name for name, value in empty.items() if value is not None} == {"prompt_id"}


def test_merging_two_tables_is_counting_their_rollouts_together():
    rows = many_rows(1)
    left, right = count(rows[:25]), count(rows[25:])
    assert decoded(left + right) == decoded(count(rows))
    assert decoded(AnswerTable() + right) == decoded(right)
    assert decoded((left + right) + left) == decoded(left + (right + left))
    assert (left + right).correct_from == "the correct column"


def test_merging_says_where_both_got_their_verdicts():
    stated, rewarded = count([{"prompt_id": "p", "correct": True}]), count([{"prompt_id": "p", "reward": 0.0}])
    both = stated + rewarded
    assert both.correct.tolist() == [1, 0]
    assert both.correct_from == f"the correct column and {rewarded.correct_from}"


def test_take_gives_the_named_rows():
    rows = many_rows(2)
    chosen = [3, 1, 40]
    assert decoded(count(rows).take(np.asarray(chosen))) == [decoded(count(rows))[i] for i in chosen]


def test_equal_answers_share_a_code_whatever_their_spelling_and_batch():
    table = count([{"answer": r"\frac{1}{2}"}, {"answer": "7"}], [{"answer": "0.5"}, {"answer": None}])
    assert table.answer_R[0] == table.answer_R[2] != table.answer_R[1]
    assert table.answer_R[3] == UNKNOWN
    assert table.answer_from == "the answer column"


# Each row states less than the one before; the verdicts of the sources differ so that it shows which one was asked.
LADDER = [
    (
        "the correct column",
        {"correct": True, "outcome": "wrong", "reward": 0.0, "answer": "1", "reference_answer": "2"},
        1,
    ),
    ("the outcome column", {"outcome": "wrong", "reward": 1.0, "answer": "2", "reference_answer": "2"}, 0),
    ("the reward, which takes only two values", {"reward": 1.0, "answer": "1", "reference_answer": "2"}, 1),
    ("comparison of the answer with the reference", {"reward": 0.4, "answer": "2.0", "reference_answer": "2"}, 1),
]


@pytest.mark.parametrize(("source", "row", "right"), LADDER)
def test_the_first_source_that_says_anything_gives_the_verdict(source, row, right):
    table = count([row])
    assert table.correct_from == source
    assert table.correct.tolist() == [right]


def test_a_threshold_for_rewards_comes_after_stated_verdicts_and_before_all_else():
    rows = [{"reward": r, "answer": "1", "reference_answer": "1"} for r in (0.0, 0.5, 1.0)] + [{"reward": None}]
    table = count(rows, solved_at=0.5)
    np.testing.assert_array_equal(table.correct, [0, 1, 1, np.nan])
    assert table.correct_from == "reward ≥ 0.5"
    assert count([{"reward": 0.0, "correct": True}], solved_at=0.5).correct.tolist() == [1]
    # A threshold without a single reward says nothing, so the next source is asked.
    assert count([{"answer": "1", "reference_answer": "1"}], solved_at=0.5).correct.tolist() == [1]


def test_verdicts_are_not_filled_in_from_a_second_source():
    # The checker failed on the second rollout: its reward of 0 is no verdict.
    table = count([{"correct": True, "reward": 1.0}, {"correct": None, "reward": 0.0}])
    np.testing.assert_array_equal(table.correct, [1, np.nan])


def test_outcomes_where_the_checker_failed_are_no_verdicts():
    table = count([{"outcome": outcome} for outcome in ("right", "wrong", "unparsable", "timeout", "error")])
    np.testing.assert_array_equal(table.correct, [1, 0, 0, np.nan, np.nan])


@pytest.mark.parametrize(
    ("rewards", "verdicts"), [([0, 1, 1], [0, 1, 1]), ([-1, 1, -1], [0, 1, 0]), ([1, 1, 1], [1, 1, 1])]
)
def test_a_reward_of_two_values_is_a_verdict(rewards, verdicts):
    assert count([{"reward": float(r)} for r in rewards]).correct.tolist() == verdicts


@pytest.mark.parametrize("rewards", [[0, 0.5, 1], [-1, 0, 1], [0, 2]])
def test_other_rewards_are_not(rewards):
    table = count([{"reward": float(r)} for r in rewards])
    assert np.isnan(table.correct).all()
    assert table.correct_from is None
    assert not table.has("correct")


def test_a_binary_reward_is_judged_over_the_whole_run_not_batch_by_batch():
    table = count([{"reward": 0.0}, {"reward": 1.0}], [{"reward": 0.3}])
    assert table.correct_from is None


def test_an_answer_that_could_not_be_read_is_wrong_only_where_someone_looked_for_it():
    graded = count(
        [{"answer": "3", "reference_answer": "3"}, {"answer": None, "reference_answer": "3"}, {"answer": "3"}]
    )
    np.testing.assert_array_equal(graded.correct, [1, 0, np.nan])
    nobody = count([{"reference_answer": "3"}, {"reference_answer": "4"}])
    assert np.isnan(nobody.correct).all()
    assert nobody.correct_from is None
    read = count(
        [
            {"completion": BOXED % 3, "reference_answer": "3"},
            {"completion": "no idea", "reference_answer": "3"},
            {"completion": None, "reference_answer": "3"},
        ]
    )
    np.testing.assert_array_equal(read.correct, [1, 0, np.nan])


def test_answers_are_read_from_completions_only_when_no_rollout_brings_one():
    silent = [{"completion": BOXED % 7}, {"completion": "hm"}, {"completion": None}]
    read = count(silent)
    assert [row["answer"] for row in decoded(read)] == ["7", None, None]
    assert read.answer_from == "read from the completion"
    for batches in (
        [silent, [{"completion": BOXED % 5, "answer": "9"}]],
        [[{"completion": BOXED % 5, "answer": "9"}], silent],
    ):
        mixed = count(*batches)
        assert sorted(row["answer"] or "" for row in decoded(mixed)) == ["", "", "", "9"]
        assert mixed.answer_from == "the answer column"
    assert count(silent, read_texts=False).answer_from is None


def test_an_expression_is_the_answer_where_the_task_asks_for_one():
    said = "Answer: (6-4)*5 = 10"
    rows = [{"completion": said, "env": env} for env in ("countdown", "Game-of-24/easy", "gsm8k", None)]
    assert [row["answer"] for row in decoded(count(rows))] == ["(6-4)*5", "(6-4)*5", "10", "10"]
    rows = [{"answer": "(6-4)*5 = 10", "env": env} for env in ("my_puzzle24_set", "math")]
    assert [row["answer"] for row in decoded(count(rows))] == ["(6-4)*5", "10"]


def test_an_expression_is_not_judged_by_one_reference():
    # (6-4)*5 is as right as 5*(6-4): a comparison would call it wrong.
    rows = [{"answer": "(6-4)*5", "reference_answer": "5*(6-4)", "env": "countdown"}]
    assert count(rows).correct_from is None
    rows.append({"answer": "4", "reference_answer": "4", "env": "gsm8k"})
    np.testing.assert_array_equal(count(rows).correct, [np.nan, 1])


@pytest.mark.parametrize(
    "env", ["countdown", "Countdown-Tasks-3to4", "game24", "tot/game_of_24", "Game of 24", "puzzle24"]
)
def test_tasks_that_ask_for_an_expression(env):
    assert asks_expression(env)
    assert not asks_expression("aime24")


# --- which columns one pass asks for -------------------------------------------------------------------------------------


def asked_columns(rows, *needs, **options):
    """The columns of each stream that `collect` started, and its evidence."""
    streams = []

    def stream(columns):
        streams.append(set(columns))
        for row in rows:
            yield Rollouts.of_rows([row], columns)

    return streams, collect(Run(Path("r"), RunInfo("t"), stream), needs, options=Options(**options))


TEXT = {"prompt_id": "p", "completion": BOXED % 3}


def test_texts_are_fetched_only_where_answers_are_needed_and_not_on_record():
    streams, evidence = asked_columns([TEXT | {"answer": "3", "correct": True}] * 3, "answers")
    assert "completion" not in set().union(*streams)
    assert [row["answer"] for row in decoded(evidence.answers)] == ["3"] * 3
    streams, evidence = asked_columns([TEXT | {"correct": True}] * 3, "answers")
    assert "completion" in streams[-1]
    assert [row["answer"] for row in decoded(evidence.answers)] == ["3"] * 3


def test_a_measure_without_answers_fetches_no_texts_unless_the_verdict_needs_them():
    streams, evidence = asked_columns([TEXT | {"correct": True}] * 3)
    assert "completion" not in set().union(*streams)
    assert evidence.answers.correct.tolist() == [1] * 3
    streams, evidence = asked_columns([TEXT | {"reference_answer": "3"}] * 3)
    assert "completion" in streams[-1]
    assert evidence.answers.correct.tolist() == [1] * 3
    streams, _ = asked_columns([TEXT | {"reference_answer": "3", "reward": 1.0}] * 3, solved_at=1.0)
    assert "completion" not in set().union(*streams)


def test_no_rollout_is_lost_or_counted_twice_when_the_stream_is_started_again():
    rows = [TEXT | {"prompt_id": f"p{i}"} for i in range(5)]
    seen = []
    run = Run(
        Path("r"),
        RunInfo("t"),
        lambda columns: iter([Rollouts.of_rows(rows[:2], columns), Rollouts.of_rows(rows[2:], columns)]),
    )
    evidence = collect(run, ("answers",), progress=seen.append)
    assert [row["prompt_id"] for row in decoded(evidence.answers)] == [f"p{i}" for i in range(5)]
    assert seen == [2, 5]


def test_an_empty_run_gives_empty_tables():
    evidence = collect(Run(Path("r"), RunInfo("t")), ("answers", "texts"))
    assert len(evidence.answers) == 0
    assert evidence.n_prompts == 0
    assert evidence.notes() == []


def test_notes_say_where_verdicts_came_from_and_how_many_are_missing():
    _, evidence = asked_columns([{"prompt_id": "p", "reward": 1.0}, {"prompt_id": "p"}], "answers")
    assert any("the reward, which takes only two values" in note for note in evidence.notes())
    assert any("1 of 2 rollouts have no verdict" in note for note in evidence.notes())
    _, evidence = asked_columns([{"prompt_id": "p", "correct": True, "answer": "1"}], "answers")
    assert evidence.notes() == []
