"""Rows, cells and batches of the record, against plain loops over Python lists."""

from __future__ import annotations

import math
from array import array

import numpy as np
import pyarrow as pa
import pytest

from equipoise.base import Answer, Completion, Grade, Problem, Rollout
from equipoise.errors import UsageError
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.columns import BY_NAME, COLUMNS, flatten, schema
from equipoise.rollouts.rows import KeyFiller, batches_of, coerce
from equipoise.rollouts.run import Run, RunInfo, Warnings


def a_rollout(**changes):
    parts = {
        "run_id": "run",
        "split": "train",
        "step": 3,
        "group_id": "g",
        "sample_index": 1,
        "problem": Problem("p", "sums", "1+1?", "2"),
        "completion": Completion(
            "2", n_tokens=2, finish="stop", token_ids=array("i", [5, 6]), logprobs=array("f", [-0.5, -0.25])
        ),
        "grade": Grade(Answer("2"), "right", 1.0, {"format": 0.5}, confidence=0.9),
    }
    return Rollout(**(parts | changes))


def test_a_rollout_becomes_one_row_with_every_field_in_its_column():
    row = flatten(a_rollout(budget=64, advantage=0.5, extra={"temperature": 0.7, "note": [1]}))
    told = {
        name: value
        for name, value in row.items()
        if value is not None and name not in ("token_ids", "logprobs_rollout")
    }
    assert told == {
        "run_id": "run", "split": "train", "step": 3, "group_id": "g", "sample_index": 1, "prompt_id": "p", "env": "sums",
        "budget": 64, "prompt": "1+1?", "completion": "2", "reference_answer": "2", "answer": "2", "outcome": "right",
        "correct": True, "reward": 1.0, "rewards": [("format", 0.5)], "confidence": 0.9, "advantage": 0.5,
        "finish_reason": "stop", "n_tokens": 2, "temperature": 0.7, "extra": '{"note": [1]}',
    }  # fmt: skip
    assert set(row) <= set(BY_NAME)
    assert list(row["token_ids"]) == [5, 6]


def test_a_chat_prompt_goes_to_messages_and_a_list_of_parts_becomes_text():
    chat = [{"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}]
    row = flatten(a_rollout(problem=Problem("p", None, chat)))
    assert row["prompt"] is None
    assert row["messages"][0] == {"role": "user", "content": "hi"}
    assert isinstance(row["messages"][1]["content"], str)


@pytest.mark.parametrize("outcome", ["right", "wrong", "unparsable", "timeout", "error", None])
def test_a_verdict_follows_from_the_outcome(outcome):
    truth = {"right": True, "wrong": False, "unparsable": False}.get(outcome)
    assert Grade(None, outcome, None).correct is truth
    (batch,) = batches_of([{"prompt_id": "p", "outcome": outcome, "reward": 1.0}], ["correct"], Warnings())
    assert batch.rows() == [{} if truth is None else {"correct": truth}]


def test_the_schema_has_the_types_on_disk_and_exact_keeps_every_digit():
    assert schema().field("entropies").type == pa.list_(pa.float16())
    assert schema(exact=True).field("entropies").type == pa.list_(pa.float64())
    assert schema(exact=True).field("topk_logprobs").type == pa.list_(pa.list_(pa.float64()))
    assert schema(("reward", "step")).names == ["step", "reward"]
    assert len(BY_NAME) == len(COLUMNS)


LISTS = [[0.5, 1.5], None, [], [2.0, None, 3.0], [4.0]]


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.large_list(pa.float32())])
@pytest.mark.parametrize("cut", [slice(0, 5), slice(1, 4), slice(3, 5), slice(2, 3), slice(0, 0)])
def test_ragged_equals_a_loop_over_the_lists(kind, cut):
    whole = pa.RecordBatch.from_arrays([pa.array(LISTS, kind)], names=["entropies"])
    part = LISTS[cut]
    ragged = Rollouts(whole.slice(cut.start, cut.stop - cut.start)).ragged("entropies")
    assert ragged.known.tolist() == [row is not None for row in part]
    for i, row in enumerate(part):
        found = ragged.values[ragged.offsets[i] : ragged.offsets[i + 1]].tolist()
        expected = [math.nan if value is None else value for value in row or []]
        assert found == pytest.approx(expected, nan_ok=True)
    assert ragged.lengths.tolist() == [len(row or []) for row in part]


def test_ragged_of_whole_lists_is_a_view_of_the_file_s_memory():
    values = pa.array(np.arange(6, dtype=np.float32))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 6], pa.int32()), values)
    ragged = Rollouts.of_arrays({"logprobs_rollout": lists}, 2).ragged("logprobs_rollout")
    assert ragged.values.ctypes.data == values.buffers()[1].address
    assert ragged.values.dtype == np.float32


def test_numbers_have_nan_for_null_and_hold_whole_numbers_past_two_to_the_fifty_three():
    batch = Rollouts.of_rows([{"reward": None, "correct": True, "budget": 2**60}, {"reward": 0.0, "correct": None}])
    assert np.isnan(batch.numbers("reward")).tolist() == [True, False]
    assert batch.numbers("correct").tolist()[0] == 1.0
    assert batch.numbers("budget")[0] == 2.0**60
    assert batch.numbers("confidence") is None


def dictionary(texts, values, indices):
    return Rollouts.of_arrays(
        {"answer": pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(values))}, len(indices)
    ), texts


@pytest.mark.parametrize(
    ("batch", "texts"),
    [
        dictionary(["a", None, "b", "a"], ["b", "unused", "a"], [2, None, 0, 2]),
        dictionary(["a", "a", None], ["a", "a", None], [0, 1, 2]),
        dictionary([None, None], ["a"], [None, None]),
        (Rollouts.of_rows([{"answer": "a"}, {"answer": None}, {"answer": "b"}]), ["a", None, "b"]),
    ],
    ids=["unused value", "value twice and null", "all null", "plain texts"],
)
def test_texts_and_codes_do_not_show_how_a_file_stores_them(batch, texts):
    assert batch.texts("answer") == texts
    codes, values = batch.codes("answer")
    assert [None if code < 0 else values[code] for code in codes] == texts
    assert sorted(values) == sorted({text for text in texts if text is not None})
    assert [row.get("answer") for row in batch.rows()] == texts


def test_rows_that_share_a_long_text_share_one_string():
    long = pa.DictionaryArray.from_arrays(pa.array([0, 0, 0]), pa.array(["x" * 1000]))
    first, second, third = Rollouts.of_arrays({"completion": long}, 3).texts("completion")
    assert first is second is third


def test_a_batch_of_no_columns_still_counts_its_rows():
    assert len(Rollouts.of_rows([{"reward": None}] * 3)) == 3
    assert Rollouts.of_rows([{"reward": None}] * 3).rows() == [{}, {}, {}]


def test_of_rows_takes_lists_arrays_and_numpy_alike():
    rows = [{"token_ids": [1, 2]}, {"token_ids": None}, {"token_ids": []}]
    as_arrays = [{"token_ids": array("i", [1, 2])}, {"token_ids": None}, {"token_ids": np.array([], np.int64)}]
    assert Rollouts.of_rows(rows).rows() == Rollouts.of_rows(as_arrays).rows() == rows
    mask = [{"loss_mask": array("b", [1, 0])}, {"loss_mask": np.array([True])}]
    assert Rollouts.of_rows(mask).rows() == [{"loss_mask": [True, False]}, {"loss_mask": [True]}]


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("reward", "0.5", 0.5),
        ("reward", math.nan, None),
        ("reward", math.inf, None),
        ("reward", "high", None),
        ("reward", np.float32(0.5), 0.5),
        ("step", 3.0, 3),
        ("step", 3.5, None),
        ("step", 2**70, None),
        ("sample_index", 2**31, None),
        ("correct", 1, True),
        ("correct", "False", False),
        ("correct", 0.5, None),
        ("correct", "maybe", None),
        ("prompt_id", 7, "7"),
        ("prompt_id", 7.0, "7"),
        ("prompt_id", "", None),
        ("answer", 7.5, "7.5"),
        ("answer", "", None),
        ("completion", "", ""),
        ("completion", "caf\u00e9 \ud800", "café ?"),
        ("completion", ["a"], '["a"]'),
        ("outcome", "correct", "right"),
        ("outcome", "great", None),
        ("finish_reason", "MAX_TOKENS", "length"),
        ("finish_reason", "tool_calls", "tool"),
        ("finish_reason", 7, None),
        ("rewards", {"a": 1, "b": None}, [("a", 1.0)]),
        ("rewards", "x", None),
        ("messages", [{"role": "user", "content": 3}], [{"role": "user", "content": "3"}]),
        ("messages", ["hi"], None),
        ("token_ids", [1, 2.0], [1, 2]),
        ("token_ids", [1.5], None),
        ("token_ids", [2**31], None),
        ("token_ids", ["a"], None),
        ("token_ids", [[1]], None),
        ("token_ids", "[1, 2]", [1, 2]),
        ("token_ids", "[1", None),
        ("token_ids", 5, None),
        ("loss_mask", [1, 0], [True, False]),
        ("loss_mask", [2], None),
        ("entropies", [], []),
        ("topk_ids", [[1, 2], [3]], [[1, 2], [3]]),
        ("topk_ids", [["a"]], None),
    ],
)  # fmt: skip
def test_a_cell_is_its_column_s_type_or_null_with_a_warning(name, value, read):
    warnings = Warnings()
    found = coerce(name, value, warnings)
    assert (found.tolist() if isinstance(found, np.ndarray) else found) == read
    assert bool(warnings.entries) == (read is None and value != "")


def test_missing_entries_of_a_token_list_are_unknown_and_the_rest_stay_in_place():
    warnings = Warnings()
    (batch,) = batches_of([{"prompt_id": "p", "entropies": [0.5, None, math.inf, 1.5]}], ["entropies"], warnings)
    assert batch.rows() == [{"entropies": [0.5, None, None, 1.5]}]
    assert np.isnan(batch.ragged("entropies").values).tolist() == [False, True, True, False]
    assert "bad-entropies" in warnings.entries


def test_unequal_token_lists_are_all_left_out_and_said():
    warnings = Warnings()
    rows = [
        {"prompt_id": "p", "token_ids": [1, 2], "entropies": [0.5]},
        {"prompt_id": "p", "token_ids": [1], "entropies": [0.5]},
    ]
    (batch,) = batches_of(rows, ["token_ids", "entropies"], warnings)
    assert batch.rows() == [{"token_ids": None, "entropies": None}, {"token_ids": [1], "entropies": [0.5]}]
    assert warnings.entries["unequal-tokens"][1] == 1


def test_samples_are_counted_within_run_step_and_group():
    keys, rows = KeyFiller(Warnings()), []
    for step, prompt in [(1, "a"), (1, "a"), (1, "b"), (2, "a"), (1, "a")]:
        row = {"step": step, "prompt": prompt}
        keys.fill(row)
        rows.append(row)
    assert [row["sample_index"] for row in rows] == [0, 1, 0, 0, 2]
    assert rows[0]["prompt_id"] == rows[3]["prompt_id"] != rows[2]["prompt_id"]


def test_turns_of_one_conversation_are_one_sample():
    keys, rows = KeyFiller(Warnings()), []
    for turn in (0, 1, 2, 0, 1):
        row = {"prompt_id": "p", "turn": turn}
        keys.fill(row)
        rows.append(row["sample_index"])
    assert rows == [0, 0, 0, 1, 1]


def test_batches_are_cut_by_rows_and_by_what_they_hold():
    assert [len(b) for b in batches_of(({"prompt_id": "p"} for _ in range(1100)), None, Warnings())] == [512, 512, 76]
    heavy = ({"prompt_id": "p", "completion": "x" * 1_500_000} for _ in range(5))
    assert [len(b) for b in batches_of(heavy, None, Warnings())] == [3, 2]


def test_only_the_asked_columns_come_and_unknown_ones_are_refused():
    run = Run(
        RunInfo("x"), RunInfo("x"), lambda columns: batches_of([{"prompt": "q", "reward": 1}], columns, Warnings())
    )
    (batch,) = run.rollouts(["reward", "prompt_id"])
    assert set(batch.columns) == {"reward", "prompt_id"}
    with pytest.raises(UsageError, match="did you mean 'reward'"):
        run.rollouts(["rewar"])


def test_reading_twice_does_not_count_a_warning_twice():
    warnings = Warnings()
    for _ in range(3):
        warn = warnings.one_pass()
        warn("kind", "first")
        warn("kind", "second")
    assert warnings.lines() == ["kind: first (and 1 more like it)"]
