"""Rollouts written as columns, against the same rollouts as rows, which are coerced cell by cell: one and the same files."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from equipoise.base import Answer, Completion, Grade, Problem, Rollout
from equipoise.rollouts import nouns
from equipoise.rollouts.columns import flatten
from equipoise.rollouts.folder import list_parts
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter

CHAT = [{"role": "user", "content": "hé"}, {"role": None, "content": [{"type": "image"}]}]


def rollout(index, **changes):
    """One of a group of four; their lists have 0 to 3 tokens."""
    n = index % 4
    completion = Completion(
        f"réponse {index} 🎲" if n else "", "" if n == 1 else None, n, "length" if n == 3 else "stop",
        array("i", range(n)), None, array("f", [-0.1] * n), array("d", [0.3] * n),
    )  # fmt: skip
    outcome = ("right", "wrong", "timeout", None)[n]
    grade = Grade(Answer(str(n)) if n else None, outcome, float(n) if n else None, {"format": 1, "b": 0.5} if n else {})
    made = Rollout("run", "train", 3, f"g{index // 4}", n, Problem(f"p{index // 4}", None, "2+2?"), completion, grade)
    return replace(made, advantage=None if n == 2 else -0.5, loss_mask=array("b", [1] * n), **changes)


def completed(index, **changes):
    made = rollout(index)
    return replace(made, completion=replace(made.completion, **changes))


def graded(index, **changes):
    made = rollout(index)
    return replace(made, grade=replace(made.grade, **changes))


PLAIN = {
    "as it is": rollout(1),
    "chat": replace(rollout(1), problem=Problem("c", "sums", [{"role": "user", "content": "hé"}, {"role": "user"}], "4")),
    "chat with parts": replace(rollout(2), problem=Problem("c", "sums", CHAT, "4")),
    "extra": replace(rollout(2), extra={"temperature": 0.7, "turn": 1, "parent_id": "0", "note": [1, math.nan]}),
    "numpy": completed(3, token_ids=np.array([1, 2, 3]), logprobs=np.zeros(3, np.float16), entropies=np.array([1, 0, 2])),
    "no tokens": completed(3, token_ids=None, logprobs=None, entropies=None),
    "no text": completed(1, text=None, finish=None),
    "whole numbers": graded(1, reward=1, confidence=0),
    "float mask": replace(rollout(2), loss_mask=array("d", [0.0, 1.0])),
}  # fmt: skip

ODD = {
    "nan": graded(1, reward=math.nan),
    "infinite part": graded(1, parts={"a": math.inf, "b": 1.0}),
    "a part that is a word": graded(1, parts={"a": "high"}),
    "numpy number": graded(1, reward=np.float32(0.1)),
    "numpy nan": graded(1, reward=np.float64("nan")),
    "large": graded(1, confidence=2**70),
    "truth as a number": graded(1, format_ok=1),
    "lone surrogate": completed(1, text="a\ud800"),
    "another tool's word": completed(1, finish="max_tokens"),
    "unknown word": completed(1, finish="because"),
    "nan among tokens": completed(2, entropies=array("f", [math.nan, 1.0])),
    "unequal lists": completed(3, token_ids=array("i", [1])),
    "large token": completed(2, token_ids=array("q", [1, 2**31])),
    "two axes": completed(2, token_ids=np.zeros((2, 1), int)),
    "list of tokens": completed(2, token_ids=[1, None]),
    "mask of twos": replace(rollout(2), loss_mask=array("b", [2, 0])),
    "missing index": replace(rollout(2), sample_index=None),
    "smallest index": replace(rollout(2), sample_index=-(2**31)),
    "missing group": replace(rollout(2), group_id=None),
    "empty text": replace(rollout(2), problem=Problem("p", "", "2+2?")),
    "number as a name": replace(rollout(2), group_id=7),
    "extra for an empty field": replace(rollout(0), extra={"reward": "0.5", "extra": 3}),
    "extra beside a field": replace(rollout(1), extra={"reward": 0.25, "budget": 9}),
    "extra as text": replace(rollout(2), extra={"turn": "2", "temperature": "hot"}),
    "top tokens": replace(rollout(2), extra={"topk_ids": [[1, 2], [3]], "topk_logprobs": [[-0.5, -1.0], [-0.1]]}),
}


WARNED = {
    *("nan", "numpy nan", "a part that is a word", "unknown word", "smallest index", "extra as text", "mask of twos"),
    *("large token", "two axes", "nan among tokens", "unequal lists", "list of tokens"),
}


def both_ways(tmp_path, rollouts, step=None):
    """The files of the rollouts as they are, and as rows."""
    found = []
    for name, given in (("columns", rollouts), ("rows", [flatten(each) for each in rollouts])):
        writer = RunWriter(tmp_path / name, RunInfo("test", run_id="run"))
        assert writer.write(given, step=step) == len(rollouts)
        found.append(
            ([(part.step, part.path.read_bytes()) for part in list_parts(tmp_path / name)], writer.warnings.entries)
        )
    return found


@pytest.mark.parametrize("case", [*PLAIN, *ODD])
def test_every_rollout_is_stored_as_its_row_would_be(case, tmp_path):
    given = [rollout(4), rollout(5), {**PLAIN, **ODD}[case], rollout(6), rollout(7)]
    columns, rows = both_ways(tmp_path, given)
    assert columns == rows
    assert bool(columns[1]) == (case in WARNED)


@pytest.mark.parametrize("case", PLAIN)
def test_plain_rollouts_never_go_row_by_row_and_odd_ones_do(case, tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr(nouns, "batches_of", refused)
    writer = RunWriter(tmp_path / "run", RunInfo("test"))
    assert writer.write([rollout(4), PLAIN[case]]) == 2
    with pytest.raises(AssertionError):
        writer.write([rollout(4), ODD["nan"]])


def test_values_worked_out_by_hand(tmp_path):
    RunWriter(tmp_path, RunInfo("test")).write([rollout(0), rollout(3, extra={"temperature": 0.7, "note": "ü"})])
    (part,) = list_parts(tmp_path)
    empty, full = pq.read_table(part.path, partitioning=None).to_pylist()
    told = {name: value for name, value in empty.items() if value is not None}
    assert told == {
        "run_id": "run", "split": "train", "group_id": "g0", "sample_index": 0, "prompt_id": "p0", "prompt": "2+2?",
        "completion": "", "outcome": "right", "correct": True, "advantage": -0.5, "finish_reason": "stop", "n_tokens": 0,
        "token_ids": [], "loss_mask": [], "logprobs_rollout": [], "entropies": [],
    }  # fmt: skip
    assert full["completion"] == "réponse 3 🎲"
    assert (full["correct"], full["outcome"], full["temperature"], full["extra"]) == (None, None, 0.7, '{"note": "ü"}')
    assert full["rewards"] == [("format", 1.0), ("b", 0.5)]
    assert full["token_ids"] == [0, 1, 2]
    assert full["loss_mask"] == [True] * 3
    assert full["logprobs_rollout"] == [float(np.float32(-0.1))] * 3
    assert full["entropies"] == [float(np.float16(0.3))] * 3


def test_steps_rows_beside_rollouts_and_long_runs(tmp_path):
    without = [replace(each, step=None) for each in (rollout(0), rollout(1))]
    columns, rows = both_ways(tmp_path / "a", [*without, rollout(2)], step=9)
    assert columns == rows
    assert [step for step, _ in columns[0]] == [3, 9]
    assert [step for step, _ in both_ways(tmp_path / "b", without)[0][0]] == [None]
    # The counting of samples goes on from rows to rollouts, and over the pieces of a long list.
    nameless = [replace(rollout(1), sample_index=None) for _ in range(600)]
    row = {"run_id": "run", "split": "train", "step": 3, "group_id": "g0", "prompt_id": "p0"}
    RunWriter(tmp_path / "mixed", RunInfo("test")).write([row, *nameless, row])
    (part,) = list_parts(tmp_path / "mixed")
    assert pq.read_table(part.path, partitioning=None)["sample_index"].to_pylist() == list(range(602))
