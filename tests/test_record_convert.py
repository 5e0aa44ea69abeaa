"""Runs converted, joined and validated."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from equipoise.errors import UsageError
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.convert import convert, convert_run
from equipoise.rollouts.folder import open_folder
from equipoise.rollouts.join import join_runs
from equipoise.rollouts.readers.table import open_source, read_run
from equipoise.rollouts.run import Run, RunInfo
from equipoise.rollouts.validate import validate_run
from equipoise.rollouts.writer import RunWriter

GOLDEN = Path(__file__).parent / "golden"


def a_run(rows, info=RunInfo("test"), path="somewhere", metrics=(), choices=(), vocab=None):
    return Run(
        Path(path), info, lambda columns: iter([Rollouts.of_rows(rows, columns)] if rows else []),
        lambda: iter(metrics), lambda: iter(choices), lambda: vocab,
    )  # fmt: skip


def rows_of(run, *columns):
    return [row for batch in run.rollouts(columns or None) for row in batch.rows()]


def test_a_converted_run_holds_the_same_rows_metrics_choices_and_vocab(tmp_path):
    rows = [
        {"prompt_id": "p", "step": step, "sample_index": i, "token_ids": [i, 5], "reward": 0.5}
        for step in (2, 1)
        for i in range(3)
    ]
    info = RunInfo("test", model="m", provenance={"entropies": "exact"})
    metrics = [
        {"step": 1, "entropy": 0.5, "eval": {"pass": math.nan}},
        {"step": 2, "entropy": 0.25},
        {"note": "no step"},
    ]
    run = a_run(rows, info, metrics=metrics, choices=[{"answer": "4"}], vocab={5: "five"})
    counts = convert_run(run, tmp_path / "a" / "run")
    assert counts == {"n_rollouts": 6, "n_steps": 2, "n_tokens": 12, "n_metrics": 2, "n_choices": 1}
    found = open_folder(tmp_path / "a" / "run")
    assert rows_of(found, "prompt_id", "step", "sample_index", "token_ids", "reward") == sorted(
        rows, key=lambda r: r["step"]
    )
    assert list(found.metrics()) == [{"step": 1, "entropy": 0.5, "eval": {"pass": None}}, {"step": 2, "entropy": 0.25}]
    assert list(found.choices()) == [{"answer": "4"}]
    assert found.vocab() == {5: "five"}
    assert found.info == info
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["run"]


@pytest.mark.parametrize("name", ["trl/plain", "verl/v1", "prime_rl/rollouts", "lm_eval/tiny-model", "nemo_rl"])
def test_any_format_read_again_from_its_conversion_is_the_same(tmp_path, name):
    source = read_run(GOLDEN / name)
    counts = convert(GOLDEN / name, tmp_path / "run")
    found = open_folder(tmp_path / "run")
    kept = (
        "run_id",
        "split",
        "step",
        "group_id",
        "sample_index",
        "prompt_id",
        "completion",
        "answer",
        "correct",
        "reward",
        "extra",
    )

    def told(run):
        return sorted(json.dumps([row.get(name) for name in kept]) for row in rows_of(run, *kept))

    assert told(found) == told(source)
    assert len(told(found)) == counts["n_rollouts"]
    assert [line["step"] for line in found.metrics()] == [line["step"] for line in source.metrics()]


def test_a_failed_conversion_leaves_nothing(tmp_path):
    def fail(columns):
        yield Rollouts.of_rows([{"prompt_id": "p", "reward": 1.0}])
        raise UsageError("the source broke")

    with pytest.raises(UsageError, match="the source broke"):
        convert_run(Run(Path("x"), RunInfo("test"), fail), tmp_path / "run")
    with pytest.raises(UsageError, match="nothing to convert"):
        convert_run(a_run([]), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_may_be_the_target(tmp_path):
    (tmp_path / "run").mkdir()
    assert convert_run(a_run([{"prompt_id": "p", "reward": 1}]), tmp_path / "run")["n_rollouts"] == 1


def test_converting_holds_a_bounded_part_of_a_large_run(tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.rollouts.writer.HELD_BYTES", 4_000_000)
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(257) * 1000, pa.int32()), pa.array(np.random.default_rng(0).random(256_000))
    )
    start, most = pa.total_allocated_bytes(), 0

    def stream(columns):
        nonlocal most
        for step in range(80):  # 20 million tokens, 41 MB as stored
            keys = {"prompt_id": pa.array(["p"] * 256), "step": pa.array([step % 5] * 256)}
            most = max(most, pa.total_allocated_bytes() - start)
            yield Rollouts.of_arrays(keys | {"entropies": lists}, 256)

    counts = convert_run(Run(Path("x"), RunInfo("test"), stream), tmp_path / "run")
    assert counts["n_tokens"] == 80 * 256_000
    assert most < 24_000_000
    assert max(len(batch) for batch in open_folder(tmp_path / "run").rollouts(["entropies"])) <= 512


def test_joined_runs_give_all_rows_and_merge_metrics_by_step():
    first = a_run(
        [{"prompt_id": "a", "reward": 1.0}],
        metrics=[{"step": 1, "entropy": 1.0, "raw": {"x": 1}}, {"step": 3, "entropy": None}],
    )
    second = a_run(
        [{"prompt_id": "b", "reward": 2.0}],
        metrics=[{"step": 1, "kl": 0.5, "raw": {"y": 2}}, {"step": 2, "kl": 0.25}, {"step": 3, "entropy": 0.5}],
    )
    joined = join_runs([first, second])
    assert [row["prompt_id"] for row in rows_of(joined, "prompt_id")] == ["a", "b"]
    assert list(joined.metrics()) == [
        {"step": 1, "kl": 0.5, "raw": {"x": 1, "y": 2}, "entropy": 1.0},
        {"step": 2, "kl": 0.25},
        {"step": 3, "entropy": 0.5},
    ]
    assert not joined.warnings.lines()
    clash = join_runs([first, a_run([], metrics=[{"step": 1, "entropy": 2.0}])])
    assert next(iter(clash.metrics()))["entropy"] == 1.0
    assert list(clash.warnings.entries) == ["mixed-metrics"]


def test_two_ways_of_measuring_entropy_are_kept_apart():
    exact = RunInfo(
        "trl",
        model="m",
        seed=1,
        settings={"lr": 1, "beta": 0},
        provenance={"entropies": "exact", "reward": "as logged"},
    )
    sampled = RunInfo("verl", model="m", seed=2, settings={"lr": 2}, provenance={"entropies": "sampled"})
    rows = [{"prompt_id": "p", "entropies": [0.5]}]
    joined = join_runs([a_run(rows, exact, "a"), a_run(rows, sampled, "b")])
    assert joined.info.provenance == {"entropies": {"mixed": {"a": "exact", "b": "sampled"}}, "reward": "as logged"}
    assert (joined.info.source, joined.info.model, joined.info.seed) == ("trl + verl", "m", None)
    assert joined.info.settings == {"beta": 0}
    assert set(joined.warnings.entries) == {"mixed-provenance", "mixed-settings"}
    # One that says nothing is as good as another, but only if it has entropies at all.
    unsaid = join_runs([a_run(rows, exact, "a"), a_run(rows, RunInfo("plain"), "b")])
    assert unsaid.info.provenance["entropies"] == {"mixed": {"a": "exact", "b": None}}
    without = join_runs([a_run(rows, exact, "a"), a_run([{"prompt_id": "p", "reward": 1}], RunInfo("plain"), "b")])
    assert without.info.provenance["entropies"] == "exact"
    same = join_runs([a_run(rows, exact, "a"), a_run(rows, exact, "b")])
    assert same.info == exact


def test_several_paths_are_one_run_with_the_warnings_of_each(tmp_path):
    for name, question in (("a", "1+1"), ("b", "2+2")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": question, "reward": 1}) + "\n")
    joined = open_source([tmp_path / "a.jsonl", str(tmp_path / "b.jsonl")])
    assert len(rows_of(joined)) == 2
    assert [line.split(": ")[1] for line in joined.warnings.lines()] == ["columns", "columns"]
    assert open_source(joined) is joined
    with pytest.raises(UsageError, match="no path was given"):
        open_source([])


def test_joined_vocabularies_are_one_unless_they_disagree():
    assert join_runs([a_run([], vocab={1: "a"}), a_run([], vocab={2: "b"}), a_run([])]).vocab() == {1: "a", 2: "b"}
    mixed = join_runs([a_run([], vocab={1: "a"}), a_run([], vocab={1: "b"})])
    assert mixed.vocab() is None
    assert "mixed-vocab" in mixed.warnings.entries


SOUND = {
    "group_id": "g", "prompt_id": "p", "sample_index": 0, "step": 1, "reward": -0.5, "confidence": 1.0, "outcome": "right",
    "correct": True, "finish_reason": "stop", "n_tokens": 2, "token_ids": [1, 2], "entropies": [0.0, 0.5], "logprobs_rollout": [0.0, -1.0],
}  # fmt: skip


def faults_of(*rows):
    return {
        fault.kind: fault
        for fault in validate_run(a_run([SOUND | {"sample_index": i} | row for i, row in enumerate(rows)]))
    }


def test_a_sound_run_has_no_faults():
    assert (
        faults_of({}, {"entropies": None, "confidence": None, "outcome": None}, {"logprobs_rollout": [1e-7, -1.0]})
        == {}
    )


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"entropies": [0.5]}, "unequal-tokens"),
        ({"entropies": [0.5, -0.125]}, "bad-entropies"),
        ({"logprobs_rollout": [0.5, -1.0]}, "bad-logprobs_rollout"),
        ({"confidence": 1.5}, "bad-confidence"),
        ({"confidence": -0.1}, "bad-confidence"),
        ({"n_tokens": -1}, "bad-n_tokens"),
        ({"outcome": "good", "correct": None}, "bad-outcome"),
        ({"finish_reason": "eos"}, "bad-finish_reason"),
        ({"outcome": "wrong"}, "bad-correct"),
    ],
)
def test_each_broken_rule_is_named_with_its_first_row(row, kind):
    faults = faults_of({}, row, {}, row)
    assert list(faults) == [kind]
    assert faults[kind].count == 2
    assert "sample_index 1" in faults[kind].first
    assert kind in str(faults[kind])


def test_nan_in_a_source_that_let_it_through_is_found():
    column = pa.array([1.0, math.nan, None])
    lists = pa.array([[0.5], [math.nan], None])
    batch = Rollouts.of_arrays({"reward": column, "entropies": lists}, 3)
    faults = validate_run(Run(Path("x"), RunInfo("x"), lambda columns: iter([batch])))
    assert [(fault.kind, fault.count) for fault in faults] == [("bad-reward", 1), ("bad-entropies", 1)]


def test_rows_that_come_twice_are_kept_and_named(tmp_path):
    writer = RunWriter(tmp_path, RunInfo("test"))
    for _ in range(3):
        writer.write([SOUND, SOUND | {"sample_index": 1}])
    writer.write([SOUND | {"step": 2}, SOUND | {"budget": 64}])
    run = open_folder(tmp_path)
    (fault,) = validate_run(run)
    assert (fault.kind, fault.count) == ("repeated-rows", 4)
    assert "step 1" in fault.first
    assert len(rows_of(run)) == 8


def test_what_the_readers_give_is_sound():
    for name in ("trl/plain", "verl/v1", "nemo_rl", "verifiers"):
        run = read_run(GOLDEN / name)
        assert [str(fault) for fault in validate_run(run) if fault.kind != "repeated-rows"] == [], name
