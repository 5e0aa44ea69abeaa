"""The run folder: what is written comes back, from us and from pandas; runs that were resumed, torn or damaged."""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from equipoise.base import Answer, Completion, Grade, Problem, Rollout
from equipoise.errors import UsageError
from equipoise.rollouts import writer as writing
from equipoise.rollouts.folder import list_parts, open_folder, step_folders
from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter

INFO = RunInfo(
    "test",
    "1.0",
    "run-1",
    "tiny",
    {"temperature": 0.7},
    {"lr": 1e-6},
    3,
    {"entropies": {"estimator": "exact", "temperature": 1.0}},
)


def rollout(step, group, index, n=3):
    tokens = Completion(
        f"text {step} {group} {index}", "hm", n, "length",
        array("i", range(n)), None, array("f", [-0.5 * i for i in range(n)]), array("d", [0.25 * i for i in range(n)]),
    )  # fmt: skip
    grade = Grade(Answer(str(index)), "right" if index else "wrong", float(index), {"format": 0.5}, confidence=0.5)
    return Rollout(
        "run-1", "train", step, f"g{group}", index, Problem(f"p{group}", "sums", f"prompt {group}", "1"), tokens, grade
    )


def rows_of(path, columns=None):
    return [row for batch in open_folder(path).rollouts(columns) for row in batch.rows()]


def test_what_is_written_comes_back(tmp_path):
    writer = RunWriter(tmp_path / "run", INFO)
    assert writer.write([rollout(step, group, i) for step in (12, 3) for group in range(2) for i in range(2)]) == 8
    rows = rows_of(tmp_path / "run")
    assert [(r["step"], r["group_id"], r["sample_index"]) for r in rows] == [
        (step, f"g{group}", i) for step in (3, 12) for group in range(2) for i in range(2)
    ]
    assert rows[1] == {
        "run_id": "run-1", "split": "train", "step": 3, "group_id": "g0", "sample_index": 1, "prompt_id": "p0", "env": "sums",
        "prompt": "prompt 0", "completion": "text 3 0 1", "thinking": "hm", "reference_answer": "1", "answer": "1",
        "outcome": "right", "correct": True, "reward": 1.0, "rewards": [("format", 0.5)], "confidence": 0.5,
        "finish_reason": "length", "n_tokens": 3, "token_ids": [0, 1, 2], "logprobs_rollout": [0.0, -0.5, -1.0],
        "entropies": [0.0, 0.25, 0.5],
    }  # fmt: skip
    assert open_folder(tmp_path / "run").info == INFO
    assert not writer.warnings.entries


def test_other_tools_read_the_folder_as_it_is(tmp_path):
    writer = RunWriter(tmp_path, INFO)
    writer.write([rollout(step, 0, i) for step in (1, 2) for i in range(2)])
    frame = pd.read_parquet(tmp_path / "rollouts")
    assert frame["step"].astype(int).tolist() == [1, 1, 2, 2]
    assert frame["reward"].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert frame["token_ids"].map(list).tolist() == [[0, 1, 2]] * 4
    assert json.loads((tmp_path / "run.json").read_text())["schema_version"] == 1


def test_the_types_on_disk_are_the_record_s_and_texts_are_stored_once(tmp_path):
    RunWriter(tmp_path, INFO).write([rollout(1, 0, i) for i in range(4)])
    (part,) = list_parts(tmp_path)
    file = pq.ParquetFile(part.path)
    types = {field.name: str(field.type) for field in file.schema_arrow}
    assert types["token_ids"] == "list<element: int32>"
    assert types["entropies"] == "list<element: halffloat>"
    assert types["logprobs_rollout"] == "list<element: float>"
    assert "step" not in types  # it is the folder's name
    chunks = {
        c.path_in_schema: c for c in (file.metadata.row_group(0).column(i) for i in range(file.metadata.num_columns))
    }
    assert "RLE_DICTIONARY" in chunks["prompt"].encodings
    assert chunks["prompt"].compression == "ZSTD"


def test_row_groups_are_cut_by_rows_and_by_values(tmp_path, monkeypatch):
    RunWriter(tmp_path / "a", INFO).write({"prompt_id": "p", "reward": 1} for _ in range(1200))
    assert _group_rows(tmp_path / "a") == [512, 512, 176]
    monkeypatch.setattr(writing, "ROW_GROUP_VALUES", 10)
    RunWriter(tmp_path / "b", INFO).write({"prompt_id": "p", "token_ids": list(range(n))} for n in (4, 4, 4, 20, 1))
    assert _group_rows(tmp_path / "b") == [2, 1, 1, 1]
    assert [len(r["token_ids"]) for r in rows_of(tmp_path / "b", ["token_ids"])] == [4, 4, 4, 20, 1]


def _group_rows(folder):
    metadata = pq.read_metadata(list_parts(folder)[0].path)
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def test_rows_without_a_step_have_a_place_and_a_given_step_is_for_them_alone(tmp_path):
    writer = RunWriter(tmp_path, INFO)
    writer.write([{"prompt_id": "p", "reward": 1}, {"prompt_id": "p", "reward": 2, "step": 7}])
    writer.write([{"prompt_id": "p", "reward": 3}, {"prompt_id": "p", "reward": 4, "step": -1}], step=8)
    assert [(step, path.name) for step, path in step_folders(tmp_path)] == [
        (-1, "step=-00001"), (7, "step=000007"), (8, "step=000008"), (None, "step=none"),
    ]  # fmt: skip
    assert [(r.get("step"), r["reward"]) for r in rows_of(tmp_path)] == [(-1, 4), (7, 2), (8, 3), (None, 1)]


def test_steps_are_in_the_order_of_their_numbers(tmp_path):
    writer = RunWriter(tmp_path, INFO)
    for step in (1_000_000, 999_999, 5):
        writer.write([{"prompt_id": "p", "reward": 1}], step=step)
    assert [r["step"] for r in rows_of(tmp_path, ["step"])] == [5, 999_999, 1_000_000]


def test_a_second_write_adds_a_part_and_changes_none(tmp_path):
    writer = RunWriter(tmp_path, INFO)
    writer.write([rollout(1, 0, 0)])
    before = {part.path: part.path.read_bytes() for part in list_parts(tmp_path)}
    RunWriter(tmp_path, INFO).write([rollout(1, 0, 1)])
    assert [part.path.name for part in list_parts(tmp_path)] == ["part-0000.parquet", "part-0001.parquet"]
    assert all(path.read_bytes() == data for path, data in before.items())


def test_a_folder_of_another_run_or_a_newer_version_is_refused(tmp_path):
    RunWriter(tmp_path, INFO)
    assert RunWriter(tmp_path, RunInfo("test")).info.run_id == "run-1"
    with pytest.raises(UsageError, match="holds the run 'run-1', not 'other'"):
        RunWriter(tmp_path, RunInfo("test", run_id="other"))
    (tmp_path / "run.json").write_text('{"schema_version": 99, "source": "x"}')
    for use in (lambda: RunWriter(tmp_path, INFO), lambda: open_folder(tmp_path)):
        with pytest.raises(UsageError, match=r"schema_version 99.*upgrade"):
            use()


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"schema_version": "1"}', '{"schema_version": 1, "provenance": 3}', "{"]
)
def test_a_run_json_that_is_not_ours_is_one_clear_error(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UsageError, match=r"run\.json"):
        open_folder(tmp_path)


def test_what_does_not_fit_is_stored_as_null_with_a_warning(tmp_path):
    writer = RunWriter(tmp_path, INFO)
    writer.write([{"prompt_id": "p", "reward": math.nan, "entropies": [1.0, math.nan], "confidence": "high"}])
    writer.write([{"prompt_id": "p", "token_ids": [1], "entropies": [0.5, 0.5]}])
    first, second = rows_of(tmp_path, ["reward", "confidence", "entropies", "token_ids", "sample_index"])
    assert first == {"entropies": [1.0, None], "sample_index": 0}
    assert second == {"sample_index": 0}
    assert set(writer.warnings.entries) == {"bad-reward", "bad-entropies", "bad-confidence", "unequal-tokens"}
    with pytest.raises(UsageError, match="unknown column of the record 'rewad': did you mean 'reward'"):
        writer.write([{"rewad": 1}])


def test_only_asked_columns_are_read_and_absent_ones_are_absent(tmp_path):
    RunWriter(tmp_path, INFO).write([rollout(1, 0, 0), rollout(2, 0, 0)])
    run = open_folder(tmp_path)
    assert [batch.columns for batch in run.rollouts(["reward", "step"])] == [("reward", "step")] * 2
    assert [batch.columns for batch in run.rollouts(["logprobs_ref"])] == [()] * 2
    assert [len(batch) for batch in run.rollouts([])] == [1, 1]
    (first, _) = run.rollouts(["entropies"])
    assert first.ragged("logprobs_ref") is None
    assert first.ragged("entropies").values.dtype == np.float16


def test_metrics_of_a_resumed_run_have_each_step_once(tmp_path):
    writer = RunWriter(tmp_path, INFO)
    for step in (1, 2, 3):
        writer.log(step, {"entropy": 1.0 / step, "bad": math.nan})
    writer.log(3, {"eval": {"pass": 0.5}})
    writer.log(2, {"entropy": 0.25, "step": 99})
    with open(tmp_path / "metrics.jsonl", "a") as handle:
        handle.write('{"step": 3.0, "entropy": 0.125}\n{"entropy": 1}\n{"step": 4, "entr')
    run = open_folder(tmp_path)
    assert list(run.metrics()) == [
        {"step": 1, "entropy": 1.0, "bad": None},
        {"step": 2, "entropy": 0.25, "bad": None},
        {"step": 3, "entropy": 0.125, "bad": None, "eval": {"pass": 0.5}},
    ]
    assert set(run.warnings.entries) == {"duplicate-step", "truncated", "no-step"}


def test_going_back_to_a_checkpoint_sets_later_steps_aside_and_keeps_them(tmp_path):
    writer = RunWriter(tmp_path, INFO)
    for step in (1, 2, 3):
        writer.write([rollout(step, 0, 0)])
        writer.log(step, {"entropy": float(step)})
    writer.rewind(1)
    writer.write([rollout(2, 0, 5)])
    writer.log(2, {"entropy": 20.0})
    assert [(r["step"], r["sample_index"]) for r in rows_of(tmp_path)] == [(1, 0), (2, 5)]
    run = open_folder(tmp_path)
    assert list(run.metrics()) == [{"step": 1, "entropy": 1.0}, {"step": 2, "entropy": 20.0}]
    assert not run.warnings.entries
    assert len(list((tmp_path / "superseded").rglob("*.parquet"))) == 2
    writer.rewind(0)
    assert len(list((tmp_path / "superseded").rglob("*.parquet"))) == 4
    assert rows_of(tmp_path) == []


def test_choices_and_vocab_come_back_and_two_tokenizers_are_refused(tmp_path):
    writer = RunWriter(tmp_path, INFO)
    writer.choose({"answer": "4", "spent": {"answer": 10}})
    writer.vocab({5: "five", 1: "\u2028"})
    writer.vocab({7: "seven"})
    run = open_folder(tmp_path)
    assert list(run.choices()) == [{"answer": "4", "spent": {"answer": 10}}]
    assert run.vocab() == {1: "\u2028", 5: "five", 7: "seven"}
    with pytest.raises(UsageError, match="two tokenizers"):
        writer.vocab({5: "fünf"})
    assert open_folder(tmp_path).vocab() == run.vocab()
    (tmp_path / "vocab.json").write_text("[1]")
    with pytest.raises(UsageError, match=r"vocab\.json"):
        run.vocab()


def test_leftovers_of_a_crash_and_damaged_parts_are_passed_over(tmp_path):
    RunWriter(tmp_path, INFO).write([rollout(step, 0, 0) for step in (1, 2, 3)])
    first, second, third = (part.path for part in list_parts(tmp_path))
    (first.parent / ".part-0001.parquet.77-ab.tmp").write_bytes(b"PAR1 half")
    (first.parent / "notes.txt").write_text("x")
    (tmp_path / "rollouts" / "other").mkdir()
    second.write_bytes(second.read_bytes()[:-9])
    run = open_folder(tmp_path)
    assert [r["step"] for batch in run.rollouts(["step"]) for r in batch.rows()] == [1, 3]
    assert "step=000002/part-0000.parquet" in run.warnings.lines()[0]
    assert "cut short" in run.warnings.lines()[0]
    for path in (first, third):
        path.write_bytes(b"")
    with pytest.raises(UsageError, match="is empty"):
        list(run.rollouts())


def test_a_folder_without_run_json_is_read_with_a_warning_and_rollouts_stands_for_its_run(tmp_path):
    RunWriter(tmp_path, INFO).write([rollout(1, 0, 0)])
    assert open_folder(tmp_path / "rollouts").info == INFO
    (tmp_path / "run.json").unlink()
    run = open_folder(tmp_path)
    assert run.info.source == "unknown"
    assert len(list(run.rollouts())) == 1
    assert list(run.warnings.entries) == ["no-run-json"]


def test_a_run_is_written_out_in_pieces_when_memory_is_short(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "HELD_BYTES", 50_000)
    rows = ({"prompt_id": f"p{i % 7}", "step": i % 3, "completion": f"{i} " * 50, "reward": i} for i in range(3000))
    assert RunWriter(tmp_path, INFO).write(rows) == 3000
    assert max(len(list(path.iterdir())) for _, path in step_folders(tmp_path)) > 1
    found = rows_of(tmp_path, ["step", "reward"])
    assert sorted(r["reward"] for r in found) == list(range(3000))
    assert all(r["reward"] % 3 == r["step"] for r in found)


def test_a_part_too_large_for_memory_is_written_page_by_page_with_the_same_bytes(tmp_path, monkeypatch):
    rollouts = [rollout(1, 0, i) for i in range(4)]
    RunWriter(tmp_path / "a", INFO).write(rollouts)
    monkeypatch.setattr(writing, "BUFFERED_BYTES", 0)
    RunWriter(tmp_path / "b", INFO).write(rollouts)
    (one,), (other,) = (list_parts(tmp_path / name) for name in "ab")
    assert one.path.read_bytes() == other.path.read_bytes()


def test_columns_of_other_types_in_our_layout_are_read_too(tmp_path):
    home = tmp_path / "rollouts" / "step=000004"
    home.mkdir(parents=True)
    frame = pd.DataFrame(
        {"group_id": [1, 2], "reward": [1, 0], "entropies": [[0.5, 0.25], [1.0]], "correct": ["true", "x"]}
    )
    frame.to_parquet(home / "part-0000.parquet")
    run = open_folder(tmp_path)
    (batch,) = run.rollouts(["step", "group_id", "reward", "entropies", "correct"])
    assert batch.rows() == [
        {"step": 4, "group_id": "1", "reward": 1.0, "entropies": [0.5, 0.25], "correct": True},
        {"step": 4, "group_id": "2", "reward": 0.0, "entropies": [1.0], "correct": None},
    ]
    assert "bad-correct" in run.warnings.entries


def test_batches_stay_small_whatever_the_row_groups_are(tmp_path):
    home = tmp_path / "rollouts" / "step=000001"
    home.mkdir(parents=True)
    frame = pd.DataFrame({"group_id": ["g"] * 100, "token_ids": [np.arange(100_000, dtype=np.int32)] * 100})
    frame.to_parquet(home / "part-0000.parquet")
    sizes = [len(batch.ragged("token_ids").values) for batch in open_folder(tmp_path).rollouts(["token_ids"])]
    assert sum(sizes) == 100 * 100_000
    assert max(sizes) <= 4_000_000


def test_the_path_may_be_a_text(tmp_path):
    RunWriter(str(tmp_path / "r"), INFO)
    assert open_folder(str(tmp_path / "r")).path == Path(tmp_path / "r")
    with pytest.raises(UsageError, match="is not a folder"):
        open_folder(tmp_path / "missing")
