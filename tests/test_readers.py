"""Readers of other tools' rollouts against files those tools wrote. Expected values are read here with json and pandas."""

from __future__ import annotations

import gzip
import json
import math
import re
import shutil
import zipfile
import zlib
from collections import Counter
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from equipoise.errors import UsageError
from equipoise.rollouts.readers import (
    areal,
    inspect_log,
    lm_eval,
    nemo_rl,
    open_instruct,
    prime_rl,
    skyrl,
    trl,
    verifiers,
    verl,
)
from equipoise.rollouts.readers.grouping import GroupCounter, group_size, run_lengths, size_by_advantages
from equipoise.rollouts.readers.table import READERS, read_run
from equipoise.rollouts.readers.trl_weights import StepRewards, recover_weights

GOLDEN = Path(__file__).parent / "golden"


def rows_of(run, columns=None):
    return [row for batch in run.rollouts(columns) for row in batch.rows()]


def read(reader, path, **settings):
    run = reader.open(GOLDEN / path, **settings)
    return rows_of(run), run


def json_lines(path):
    return [json.loads(line) for line in (GOLDEN / path).read_text().splitlines()]


def groups(rows):
    """How many rows each group of each run, split and step has."""
    return Counter((row.get("run_id"), row.get("split"), row.get("step"), row["group_id"]) for row in rows)


# ---------------------------------------------------------------- TRL


def test_trl_keeps_two_groups_of_one_question_apart():
    rows, run = read(trl, "trl/plain")
    source = pd.concat(pd.read_parquet(f) for f in sorted((GOLDEN / "trl/plain/completions").glob("*.parquet")))
    assert [r["completion"] for r in rows] == source["completion"].tolist()
    assert [r["step"] for r in rows] == source["step"].tolist()
    # The maker draws 4 prompts x 4 completions a step; rows 8 to 15 of step 1 are one question drawn twice.
    assert set(groups(rows).values()) == {4}
    assert len(groups(rows)) == 12
    first = rows[:16]
    assert len({r["prompt"] for r in first[8:]}) == 1
    assert len({r["prompt_id"] for r in first[8:]}) == 1
    assert [r["group_id"] for r in first[8:]] == [first[8]["group_id"]] * 4 + [first[12]["group_id"]] * 4
    assert first[8]["group_id"] != first[12]["group_id"]
    assert [r["sample_index"] for r in first] == [0, 1, 2, 3] * 4
    assert {r["split"] for r in rows} == {"train"}
    assert run.info.source == "trl"


def test_trl_recovers_the_weights_that_were_set():
    rows, run = read(trl, "trl/plain")
    source = pd.concat(pd.read_parquet(f) for f in sorted((GOLDEN / "trl/plain/completions").glob("*.parquet")))
    np.testing.assert_allclose([r["reward"] for r in rows], source["correct_reward"] + 0.25 * source["brevity_reward"])
    assert dict(rows[2]["rewards"]) == {"correct_reward": 1.0, "brevity_reward": pytest.approx(0.7083)}
    assert "1 correct_reward + 0.25 brevity_reward" in run.warnings.entries["recovered-weights"][0]
    # The log's own mean of the total, which the reader used only through its equations.
    log = json.loads((GOLDEN / "trl/plain/trainer_state.json").read_text())["log_history"]
    means = {r["step"]: r["reward"] for r in log if "reward" in r}
    for step, mean in means.items():
        assert np.mean([r["reward"] for r in rows if r["step"] == step]) == pytest.approx(mean, abs=1e-5)


def test_trl_chat_has_messages_extras_and_unscored_rewards():
    rows, _ = read(trl, "trl/chat")
    assert rows[0]["messages"] == [{"role": "system", "content": "answer"}, {"role": "user", "content": "2+2=?"}]
    assert rows[0].get("prompt") is None
    assert rows[0]["completion"] == "9xm0io6us44"
    assert rows[1]["completion"] == ""
    assert dict(rows[1]["rewards"]) == {"correct_reward": 0.0}
    assert rows[0]["reward"] == 1.0 + 0.5 * -0.5  # weights 1 and 0.5 in the maker
    assert json.loads(rows[0]["extra"]) == {"gold": "4", "parsed": "44"}
    assert all(r.get("correct") is None and r.get("answer") is None for r in rows)


def test_trl_column_map_names_what_the_file_does_not():
    rows, _ = read(
        trl, "trl/chat", columns={"correct": "correct_reward", "reference_answer": "gold", "answer": "parsed"}
    )
    assert (rows[0]["correct"], rows[0]["reference_answer"], rows[0]["answer"]) == (True, "4", "44")
    assert rows[1]["correct"] is False
    assert rows[1]["answer"] is None
    with pytest.raises(UsageError, match="did you mean 'correct'"):
        trl.open(GOLDEN / "trl/chat", columns={"corect": "correct_reward"})


@pytest.mark.parametrize("name", ["eval_overwrite", "eval_mixed"])
def test_trl_steps_with_an_evaluation_are_not_called_training(name):
    rows, run = read(trl, f"trl/{name}")
    assert {r["step"]: r.get("split") for r in rows} == {1: "train", 2: None, 3: None}
    assert "evaluation-rows" in run.warnings.entries
    assert set(groups(rows).values()) == {4}


def test_trl_without_a_log_sees_the_evaluation_by_its_rows(tmp_path):
    plain_files = sorted((GOLDEN / "trl/plain/completions").glob("*.parquet"))
    for file in plain_files:
        shutil.copy(file, tmp_path)
    short = pd.read_parquet(plain_files[1]).iloc[8:]
    short.to_parquet(tmp_path / plain_files[1].name)
    run = trl.open(tmp_path)
    assert {r["step"]: r.get("split") for r in rows_of(run)} == {1: "train", 2: None, 3: "train"}
    assert {"guessed-rewards", "evaluation-rows", "no-total-reward"} <= run.warnings.entries.keys()


def test_trl_without_a_log_sees_a_list_of_prompts_that_comes_back(tmp_path):
    for step in range(1, 6):
        prompts = [["a", "b"], ["c", "d"], ["t", "u"], ["e", "f"], ["t", "u"]][step - 1]
        frame = pd.DataFrame(
            {
                "step": step,
                "prompt": np.repeat(prompts, 3),
                "completion": [f"{step}.{i}" for i in range(6)],
                "r": 0.5,
                "advantage": 0.0,
            }
        )
        frame.to_parquet(tmp_path / f"completions_{step:05d}.parquet")
    run = trl.open(tmp_path)
    rows = rows_of(run)
    assert {r["step"]: r.get("split") for r in rows} == {1: "train", 2: "train", 3: None, 4: "train", 5: None}
    assert {r["reward"] for r in rows} == {0.5}  # one reward function is the total


def test_trl_counts_a_reused_batch_once():
    rows, run = read(trl, "trl/reused_batch")
    assert {r["step"] for r in rows} == {1, 3}
    assert len(rows) == 32
    assert run.warnings.entries["reused-batch"][1] == 2
    assert [m["step"] for m in run.metrics()] == [1, 2, 3, 4]


def test_trl_metrics_come_from_the_log_with_provenance():
    run = trl.open(GOLDEN / "trl/plain")
    log = json.loads((GOLDEN / "trl/plain/trainer_state.json").read_text())["log_history"]
    assert [m["entropy"] for m in run.metrics()] == [r["entropy"] for r in log if "entropy" in r]
    assert run.info.provenance["entropy"]["key"] == "entropy"


def test_trl_reads_a_single_file_and_only_the_columns_asked_for():
    run = trl.open(GOLDEN / "trl/plain/completions/completions_00002.parquet")
    batches = list(run.rollouts(["advantage", "group_id"]))
    assert sum(map(len, batches)) == 16
    assert all(set(batch.columns) <= {"advantage", "group_id"} for batch in batches)


def test_trl_one_question_for_the_whole_batch_is_split_by_its_advantages(tmp_path):
    """One prompt, three groups of four: only the normalised advantages show where groups end."""
    rng = np.random.default_rng(0)
    for step in (1, 2):
        reward = rng.integers(0, 2, size=(3, 4)).astype(float)
        reward[0] = [1, 0, 0, 1]
        advantage = (reward - reward.mean(1, keepdims=True)) / (reward.std(1, ddof=1, keepdims=True) + 1e-4)
        frame = pd.DataFrame(
            {
                "step": step,
                "prompt": "q",
                "completion": [f"{step}.{i}" for i in range(12)],
                "acc": reward.ravel(),
                "advantage": advantage.ravel(),
            }
        )
        frame.to_parquet(tmp_path / f"completions_{step:05d}.parquet")
    assert set(groups(rows_of(trl.open(tmp_path))).values()) == {4}


# ---------------------------------------------------------------- groups and weights by hand


def test_group_size_is_what_divides_every_run():
    assert run_lengths("aaaabbbbbbbbcccc") == [4, 8, 4]
    assert group_size([[4, 8, 4]]) == 4
    assert group_size([[2, 4, 8]]) == 4  # the first run of a file may have lost its beginning
    assert group_size([[8], [8]]) == 8
    assert group_size([[3, 2, 3]]) is None  # uneven
    assert group_size([]) is None


def test_rows_are_counted_off_and_a_new_prompt_starts_a_group():
    counter = GroupCounter(2)
    assert [counter.next(p) for p in "aaaabcc"] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0), (3, 1)]
    counter = GroupCounter(None)
    assert [counter.next(p) for p in "aaab"] == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_advantages_that_are_not_normalised_leave_the_size_alone():
    # Two halves that sum to zero, but whose squares are not n - 1: rewards less the mean, without a divisor.
    assert size_by_advantages(4, [[0.5, -0.5, 0.5, -0.5]]) == 4
    r = math.sqrt(0.5)
    assert size_by_advantages(4, [[r, -r, -r, r]]) == 2
    assert size_by_advantages(4, [[0.0, 0.0, 0.0, 0.0]]) == 4


def test_weights_are_refused_where_the_equations_do_not_hold():
    rewards = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    group = np.zeros(4, dtype=int)

    def step(total):
        return StepRewards(rewards, total - total.mean(), group, float(total.mean()))

    assert recover_weights([step(rewards @ [2.0, 0.5])]) == pytest.approx((2.0, 0.5))
    curved = (rewards @ [2.0, 0.5]) ** 2
    assert recover_weights([step(curved)]) is None
    same = np.array([[1.0, 1.0], [0.0, 0.0]])  # two functions that always agree: only their sum is known
    assert recover_weights([StepRewards(same, np.array([0.7, -0.7]), group[:2], 0.5)]) is None
    assert recover_weights([]) is None


# ---------------------------------------------------------------- verl


def test_verl_v1_groups_by_uid_and_counts_a_session_once():
    rows, run = read(verl, "verl/v1")
    source = json_lines("verl/v1/rollout/1.jsonl")
    train = [r for r in rows if r["split"] == "train" and r["step"] == 1]
    sessions = {line["uid"].rsplit("_", 1)[0] for line in source}
    assert len(source) == 13
    assert len(train) == len(sessions) == 12
    assert set(groups(rows).values()) == {4}
    assert len({r["group_id"] for r in train}) == 3
    assert len({r["prompt_id"] for r in train}) == 2
    last = {line["uid"].rsplit("_", 1)[0]: line for line in source}  # lines are sorted, so the last output stays
    for row in train:
        line = last[f"{row['group_id']}_{row['sample_index']}"]
        assert (row["completion"], row["reward"], row["reference_answer"]) == (
            line["output"],
            line["score"],
            line["gts"],
        )
        assert row["correct"] is None  # v1 training dumps lose the extras
    two = next(r for r in train if "earlier_outputs" in (r.get("extra") or ""))
    assert json.loads(two["extra"])["earlier_outputs"] == ["I should count: 2, 3, 5, 7."]
    assert "several-outputs" in run.warnings.entries


def test_verl_validation_has_verdicts_and_the_summed_reward():
    rows, _ = read(verl, "verl/v1/validation/0.jsonl")
    source = [line for line in json_lines("verl/v1/validation/0.jsonl") if not line["output"].startswith("I should")]
    assert {r["split"] for r in rows} == {"eval"}
    assert {r["step"] for r in rows} == {0}
    assert [r["correct"] for r in rows] == [line["acc"] for line in source]
    assert [r["reward"] for r in rows] == [line["reward"] for line in source]
    assert [r["answer"] for r in rows] == [None if line["pred"] == "[INVALID]" else line["pred"] for line in source]
    outcome = {"[INVALID]": "unparsable"}
    assert [r["outcome"] for r in rows] == ["right" if s["acc"] else outcome.get(s["pred"], "wrong") for s in source]
    assert dict(rows[0]["rewards"]) == {"score": 1.0, "overlong_reward": 0.0}


def test_verl_legacy_merges_equal_questions_and_says_so():
    rows, run = read(verl, "verl/legacy")
    assert sorted(groups(rows).values()) == [4, 4, 8, 8]
    assert {"no-uid", "merged-groups"} <= run.warnings.entries.keys()
    long = [r for r in rows if "voilà" in r["completion"]]
    # The dump's score is the function's own 1.0; the manager trained on it plus the overlong penalty.
    assert {(r["reward"], r["correct"]) for r in long} == {(1.0 - 0.525, True)}
    v1, _ = read(verl, "verl/v1/rollout")
    assert [r["reward"] for r in v1 if "voilà" in r["completion"]] == pytest.approx([0.475] * len(long))


def test_verl_metrics_below_the_folder_are_joined():
    run = verl.open(GOLDEN / "verl")
    logged = {line["step"]: line["data"] for line in json_lines("verl/metrics/golden/grpo.jsonl")}
    found = {m["step"]: m for m in run.metrics()}
    assert found.keys() == logged.keys()
    assert found[1]["entropy"] == logged[1]["actor/entropy"]
    assert "entropy" not in found[0]
    assert {r["run_id"] for r in rows_of(run)} == {"legacy", "v1"}  # two runs in one folder stay apart


def test_verl_numeric_acc_is_a_verdict_only_where_it_is_one_throughout(tmp_path):
    line = {"input": "q", "output": "a", "gts": "1", "score": 1.0, "step": 3}
    (tmp_path / "3.jsonl").write_text("".join(json.dumps(line | {"acc": acc}) + "\n" for acc in (1.0, 0.0)))
    assert [r["correct"] for r in rows_of(verl.open(tmp_path))] == [True, False]
    (tmp_path / "3.jsonl").write_text("".join(json.dumps(line | {"acc": acc}) + "\n" for acc in (1.0, 0.1)))
    run = verl.open(tmp_path)
    assert [r.get("correct") for r in rows_of(run)] == [None, None]  # else only the right ones would be counted
    assert "acc-is-a-score" in run.warnings.entries


# ---------------------------------------------------------------- inspect


def test_inspect_json_and_its_errored_sample():
    rows, run = read(inspect_log, "inspect/match.json")
    log = json.loads((GOLDEN / "inspect/match.json").read_text())
    letters = {"C": True, "I": False}
    for row, sample in zip(rows, log["samples"], strict=True):
        assert (row["prompt_id"], row["group_id"], row["sample_index"]) == (
            sample["id"],
            sample["id"],
            sample["epoch"] - 1,
        )
        assert row["prompt"] == sample["input"]
        assert row["reference_answer"] == sample["target"]
        if sample.get("error"):
            assert (row["outcome"], row["finish_reason"]) == ("error", "error")
            assert row["correct"] is None
            assert row["reward"] is None
            assert row["completion"] is None
            assert row["n_tokens"] is None
        else:
            assert row["correct"] is letters[sample["scores"]["match"]["value"]]
            assert row["completion"] == sample["output"]["completion"]
            assert row["n_tokens"] == sample["output"]["usage"]["output_tokens"]
    assert sum(r["outcome"] == "error" for r in rows) == 1
    assert (run.info.model, run.info.source_version, run.info.seed) == ("mockllm/model", "0.3.285", 1)
    assert run.info.sampling["temperature"] == rows[0]["temperature"] == 0.8
    # `match` reports the whole reply as its answer, which is no parse.
    assert all(r.get("answer") is None for r in rows)
    assert [m["role"] for m in rows[0]["messages"]] == ["system", "user"]


def test_inspect_archive_has_epochs_log_probs_and_truncation():
    rows, run = read(inspect_log, "inspect/match.eval")
    assert len(rows) == 24
    assert set(groups(rows).values()) == {4}
    by_id = {}
    for row in rows:
        by_id.setdefault(row["group_id"], []).append(row["correct"])
        tokens = json.loads(row["extra"])["tokens"]
        assert "".join(tokens) == row["completion"]
        assert len(tokens) == row["n_tokens"] == len(row["logprobs_rollout"])
        assert len(row["topk_logprobs"]) == len(tokens)
        assert {len(top) for top in row["topk_logprobs"]} == {3}
        # The maker gives every token but the answer probability 0.95, and the cut replies end after "makes".
        assert row["logprobs_rollout"][0] == pytest.approx(math.log(0.95))
        assert row["topk_logprobs"][0][0] == row["logprobs_rollout"][0]
        assert row["finish_reason"] == ("length" if row["completion"].endswith("makes") else "stop")
        a, b = (int(word) for word in row["prompt"].removesuffix("?").split() if word.isdigit())
        assert row["correct"] == row["completion"].endswith(f" {a + b}")
    assert {r["finish_reason"] for r in rows} == {"stop", "length"}
    assert run.info.provenance["logprobs_rollout"]["kind"] == "unknown"


@pytest.mark.parametrize("name", ["numeric.eval", "numeric_deflated.eval"])
def test_inspect_scorers_that_are_no_verdict(name):
    rows, _ = read(inspect_log, f"inspect/{name}")
    assert len(rows) == 6
    for row in rows:
        parts = dict(row["rewards"])
        assert parts.keys() == {"closeness", "several/exact", "several/length"}
        assert parts["several/length"] == len(row["completion"])
        assert row["reward"] == parts["closeness"]  # the log's headline
        assert (
            row["correct"]
            == (parts["several/exact"] == 1.0)
            == row["completion"].endswith(f" {row['reference_answer']}")
        )
    mapped, _ = read(inspect_log, f"inspect/{name}", columns={"reward": "several/exact"})
    assert [r["reward"] for r in mapped] == [float(r["correct"]) for r in rows]


def test_inspect_every_kind_of_score(tmp_path):
    scorers = [
        {"name": "num", "metrics": [{"name": "inspect_ai/accuracy"}]},
        {"name": "pkg/deep", "metrics": [{"name": "inspect_ai/mean"}]},
    ]
    values = ["C", "I", "P", "N", True, "no", 1, 0.5, [1], {"a": "P", "b": False}]
    kinds = {"num": values, "pkg/deep": [1, "x", "C"]}
    samples = [
        {"id": f"{name}{i}", "epoch": 1, "scores": {name: {"value": value, "answer": "A"}}}
        for name, these in kinds.items()
        for i, value in enumerate(these)
    ]
    log = {"version": 2, "status": "success", "eval": {"eval_id": "e", "scorers": scorers}, "samples": samples}
    (tmp_path / "log.json").write_text(json.dumps(log))
    rows = rows_of(inspect_log.open(tmp_path / "log.json"))
    assert [r["correct"] for r in rows[:10]] == [True, False, None, False, True, False, True, None, None, False]
    assert [r["reward"] for r in rows[:10]] == [1.0, 0.0, 0.5, 0.0, 1.0, 0.0, 1.0, 0.5, None, 0.5]
    assert rows[3]["outcome"] == "unparsable"
    assert dict(rows[9]["rewards"]) == {"num/a": 0.5, "num/b": 0.0}
    # A 1 that is averaged as a mean is a score; the letter is a verdict also under a name with a slash.
    assert [(r["correct"], r["reward"], r["answer"]) for r in rows[10:]] == [
        (None, 1.0, "A"),
        (None, None, "A"),
        (True, 1.0, "A"),
    ]


def test_inspect_folder_reads_a_copied_evaluation_once():
    rows, run = read(inspect_log, "inspect")
    assert len(rows) == 24 + len(json.loads((GOLDEN / "inspect/match.json").read_text())["samples"]) + 6
    assert "same-eval" in run.warnings.entries
    assert {r["env"] for r in rows} == {"sums", "sums_numeric"}


def test_inspect_zstd_members_of_several_frames(tmp_path):
    """Very large members are written as several frames; zip method 93 is written here by hand."""
    header = json.dumps(
        {"version": 2, "status": "success", "eval": {"eval_id": "x", "task": "t", "model": "m"}}
    ).encode()
    sample = json.dumps(
        {"id": 1, "epoch": 2, "input": "q", "target": ["a", "b"], "scores": {"s": {"value": True}}}
    ).encode()
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in (("header.json", header), ("samples/1_epoch_2.json", sample)):
            half = len(data) // 2
            codec = pa.Codec("zstd")
            archive.writestr(name, bytes(codec.compress(data[:half])) + bytes(codec.compress(data[half:])))
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
    at = raw.find(b"PK\x01\x02")
    for info, data in zip(infos, (header, sample), strict=True):
        for start, offset in ((info.header_offset, 8), (at, 10)):
            raw[start + offset : start + offset + 2] = (93).to_bytes(2, "little")
        for start, offset in ((info.header_offset, 14), (at, 16)):
            raw[start + offset : start + offset + 4] = zlib.crc32(data).to_bytes(4, "little")
        for start, offset in ((info.header_offset, 22), (at, 24)):
            raw[start + offset : start + offset + 4] = len(data).to_bytes(4, "little")
        at = raw.find(b"PK\x01\x02", at + 4)
    path.write_bytes(raw)
    (row,) = rows_of(inspect_log.open(path))
    assert (row["prompt_id"], row["sample_index"], row["correct"], row["reference_answer"]) == ("1", 1, True, "a")


# ---------------------------------------------------------------- lm-eval


def test_lm_eval_takes_one_filter_and_grades_only_what_was_graded():
    rows, run = read(lm_eval, "lm_eval")
    (path,) = (GOLDEN / "lm_eval/tiny-model").glob("samples_sums_2*.jsonl")
    source = [line for line in map(json.loads, path.read_text().splitlines()) if line["filter"] == "score-first"]
    assert len(rows) == 5 * 4
    assert set(groups(rows).values()) == {4}
    assert [r["completion"] for r in rows] == [text for line in source for text in line["resps"][0]]
    firsts = [r for r in rows if r["sample_index"] == 0]
    assert [r["correct"] for r in firsts] == [line["exact_match"] == 1.0 for line in source]
    assert [r["answer"] for r in firsts] == [
        None if (a := line["filtered_resps"][0]) == "[invalid]" else a for line in source
    ]
    assert all(r["correct"] is None and r["answer"] is None and r["reward"] is None for r in rows if r["sample_index"])
    assert rows[0]["reference_answer"] == "5"
    assert rows[0]["prompt"] == "2+3=?"
    assert rows[0]["env"] == "sums"
    assert {"one-filter", "repeats-ungraded", "not-sampled"} <= run.warnings.entries.keys()
    assert (run.info.source_version, run.info.model, run.info.seed) == ("0.4.13", "tiny-model", 5)
    assert run.info.sampling["temperature"] == 1.0


def test_lm_eval_a_vote_belongs_to_no_repeat():
    rows, _ = read(lm_eval, "lm_eval", columns={"answer": "maj@4"})
    assert len(rows) == 20
    assert all(r.get("answer") is None and r.get("correct") is None for r in rows)
    with pytest.raises(UsageError, match="no filter 'strict': it has score-first, maj@4"):
        read(lm_eval, "lm_eval/tiny-model/samples_sums_2026-01-02T03-04-05.678901.jsonl", columns={"answer": "strict"})


def test_lm_eval_single_repeat_is_graded(tmp_path):
    line = {"doc_id": 7, "doc": {}, "target": "5", "arguments": {"gen_args_0": {"arg_0": "q", "arg_1": {"temperature": 0.0}}},
            "resps": [["it is 5"]], "filtered_resps": ["5"], "filter": "strict-match", "metrics": ["exact_match"], "exact_match": 1.0}  # fmt: skip
    path = tmp_path / "samples_gsm8k_2026-01-02T03-04-05.678901.jsonl"
    path.write_text(
        json.dumps(line)
        + "\n"
        + json.dumps(line | {"doc_id": 8, "filtered_resps": ["[invalid]"], "exact_match": 0.0})
        + "\n"
    )
    first, second = rows_of(lm_eval.open(path))
    assert (first["group_id"], first["answer"], first["correct"], first["outcome"]) == ("gsm8k/7", "5", True, "right")
    assert (second["answer"], second["correct"], second["outcome"]) == (None, False, "unparsable")


# ---------------------------------------------------------------- verifiers, prime-rl


def test_verifiers_evaluation_through_a_hosted_model():
    rows, run = read(verifiers, "verifiers")
    source = json_lines("verifiers/traces.jsonl")
    assert len(rows) == len(source) == 9
    for row, episode in zip(rows, source, strict=True):
        assert row["prompt_id"] == row["group_id"] == episode["task"]["key"]
        assert (row["run_id"], row["split"], row["env"]) == ("run-1", "eval", "sums")
        if episode["traces"]:
            (trace,) = episode["traces"]
            assert row["completion"] == trace["nodes"][-1]["message"]["content"]
            assert row["reward"] == sum(r["score"] * r["weight"] for r in trace["rewards"].values() if r is not None)
            assert dict(row["rewards"]) == {name: r["score"] for name, r in trace["rewards"].items() if r is not None}
            assert row["n_tokens"] == sum(call["usage"]["completion_tokens"] for call in trace["calls"])
        assert row.get("correct") is None
        assert row.get("token_ids") is None
    assert [r["sample_index"] for r in rows] == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    failed = rows[-1]
    assert (failed["outcome"], failed["reward"], failed["completion"]) == ("error", None, None)
    assert [r["finish_reason"] for r in rows[:4]] == ["stop", "stop", "stop", "length"]
    named, _ = read(verifiers, "verifiers", columns={"correct": "exact"})
    assert [r["correct"] for r in named[:4]] == [True, False, True, False]
    assert named[-1]["correct"] is None
    assert run.info.source_version == "0.4.0"


def test_prime_rl_reads_all_and_joins_full_digits():
    rows, run = read(prime_rl, "prime_rl")
    train = [r for r in rows if r["split"] == "train"]
    assert len(train) == 16
    assert set(groups(train).values()) == {4}
    assert len([r for r in rows if r["split"] == "eval"]) == 4
    assert {r["group_id"] for r in train} == {f"group-{step}-{i}" for step in (1, 2) for i in (0, 1)}
    exports = json_lines("prime_rl/token_exports/step_1/rank_0.jsonl")
    for row, export in zip(train[:4], exports, strict=True):  # the maker exports the four of the first group in order
        kept = [i for i, flag in enumerate(export["loss_mask"]) if flag]
        span = slice(kept[0], kept[-1] + 1)
        assert row["token_ids"] == export["token_ids"][span]
        assert row["loss_mask"] == export["loss_mask"][span]
        for theirs, ours in (
            ("entropy", "entropies"),
            ("trainer_logprobs", "logprobs_train"),
            ("inference_logprobs", "logprobs_rollout"),
        ):
            expected = [
                v if flag else None for v, flag in zip(export[theirs][span], export["loss_mask"][span], strict=True)
            ]
            assert row[ours] == expected
        assert row["n_tokens"] == len(kept)
        assert row["advantage"] == pytest.approx(export["advantages"][kept[0]])
    assert "unstable-export" in run.warnings.entries  # step 2 has no marker: its four decimals are kept
    two = next(r for r in train if r["step"] == 2)
    (trace,) = json_lines("prime_rl/rollouts/step_2/train/all/traces.jsonl")[0]["traces"]
    compact = [v for node in trace["nodes"] for v in node.get("entropies") or []]
    assert [v for v in two["entropies"] if v is not None] == compact
    assert two["entropies"].count(None) == two["loss_mask"].count(False) > 0
    assert [m["step"] for m in run.metrics()] == [1, 2]


def test_prime_rl_older_layout_and_only_effective(tmp_path):
    (row,), _ = read(prime_rl, "prime_rl/older")
    assert (row["run_id"], row["group_id"], row["step"], row["env"]) == ("run-6", "group-1-0", 1, "sums")
    shutil.copytree(GOLDEN / "prime_rl/rollouts", tmp_path / "rollouts")
    shutil.rmtree(tmp_path / "rollouts/step_1/train/all")
    run = prime_rl.open(tmp_path)
    assert sum(r["step"] == 1 for r in rows_of(run)) == 4
    assert "effective-only" in run.warnings.entries


def test_verifiers_branches_share_their_sample(tmp_path):
    (line,) = json_lines("prime_rl/rollouts/step_1/train/all/traces.jsonl")[1:2]
    (trace,) = line["traces"]
    other = {
        "parent": 1,
        "message": {"role": "assistant", "content": "no"},
        "sampled": True,
        "token_ids": [9, 8],
        "mask": [True, True],
        "logprobs": [-1.0, -2.0],
    }
    trace["nodes"].append(other)
    frozen = json.loads(json.dumps(trace)) | {"agent": {"name": "judge", "trainable": False}}
    line["traces"].append(frozen)
    (tmp_path / "traces.jsonl").write_text(json.dumps(line) + "\n")
    run = verifiers.open(tmp_path)
    first, second = rows_of(run)
    assert (first["completion"], second["completion"]) == ("41", "no")
    assert first["sample_index"] == second["sample_index"] == 0
    assert first["parent_id"] == second["parent_id"] == trace["id"]
    assert second["logprobs_rollout"] == [-1.0, -2.0]
    assert second["entropies"] is None
    assert {"branches", "other-agents"} <= run.warnings.entries.keys()


# ---------------------------------------------------------------- the others


def test_nemo_rl_unwraps_and_cuts_to_the_trained_tokens():
    rows, _ = read(nemo_rl, "nemo_rl")
    source = [line for step in (1, 2) for line in json_lines(f"nemo_rl/train_data_step{step}.jsonl")]
    train = [r for r in rows if r["split"] == "train"]
    assert len(train) == len(source) == 16
    assert set(groups(rows).values()) == {4}
    for row, line in zip(train, source, strict=True):
        mask = line["token_loss_mask"][0]
        assert row["token_ids"] == [t for t, m in zip(line["token_ids"][0], mask, strict=True) if m]  # one turn: no gap
        assert row["logprobs_rollout"] == [v for v, m in zip(line["generation_logprobs"][0], mask, strict=True) if m]
        assert row["logprobs_train"] == [v for v, m in zip(line["prev_logprobs"][0], mask, strict=True) if m]
        assert (row["prompt"], row["completion"], row["reward"]) == (*line["content"][0][:2], line["rewards"][0])
        assert row["n_tokens"] == sum(mask)
        assert row["advantage"] == line["advantages"][0][0]
    validation = [r for r in rows if r["split"] == "eval"]
    assert [r["completion"] for r in validation[:2]] == ["42", "It is 41."]
    assert {r["step"] for r in validation} == {2}


def test_open_instruct_has_tokens_and_no_text():
    rows, run = read(open_instruct, "open_instruct")
    source = json_lines("open_instruct/grpo_sums_rollouts_000000.jsonl")
    assert [(r["step"], r["group_id"]) for r in rows] == [(line["step"], str(line["prompt_idx"])) for line in source]
    assert [r["sample_index"] for r in rows] == [0, 1, 2, 3] * 4
    assert [r["token_ids"] for r in rows] == [line["response_tokens"] for line in source]
    assert [r["logprobs_rollout"] for r in rows] == [line["logprobs"] for line in source]
    assert [r["reward"] for r in rows] == [line["reward"] for line in source]
    assert all(r.get("completion") is None for r in rows)
    assert rows[0]["n_tokens"] == 3
    assert len({r["prompt_id"] for r in rows}) == len({tuple(line["prompt_tokens"]) for line in source})
    assert (run.info.run_id, run.info.model) == ("grpo_sums", "tiny")


def test_skyrl_sums_token_scores():
    rows, run = read(skyrl, "skyrl")
    assert len(rows) == 8
    assert set(groups(rows).values()) == {4}
    assert {r["step"] for r in rows} == {5}
    assert [r["reward"] for r in rows] == [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert [r["finish_reason"] for r in rows[:4]] == ["stop", "stop", "stop", "length"]
    assert {(r["env"], r["reference_answer"]) for r in rows} == {("openai/gsm8k", "42"), ("unknown", "15")}
    (metrics,) = run.metrics()
    assert metrics["step"] == 5
    assert metrics["eval"]["reward_mean"] == 0.75


def test_skyrl_a_list_of_scores_is_summed_and_an_unscored_one_is_null(tmp_path):
    line = {"input_prompt": "q", "output_response": "a", "stop_reason": "stop", "env_class": "e", "env_extras": {}}
    scores = [[0.5, 0.25], [0.0, None], None, []]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line | {"score": score}) + "\n" for score in scores))
    assert [r["reward"] for r in rows_of(skyrl.open(tmp_path))] == [0.75, None, None, None]


def test_areal_groups_by_task_and_problem_by_prompt():
    rows, _ = read(areal, "areal")
    assert len(rows) == 12
    assert set(groups(rows).values()) == {4}
    assert {(r["step"], r["group_id"]) for r in rows} == {(2, "11"), (2, "12"), (3, "19")}
    question = {r["group_id"]: r["prompt_id"] for r in rows}
    assert question["11"] == question["19"] != question["12"]
    assert [r["n_tokens"] for r in rows[:4]] == [38 - 35, 45 - 35, 38 - 35, 55 - 35]


# ---------------------------------------------------------------- which reader

CURVES = ("metrics.jsonl", "grpo.jsonl", "aggregated_results.jsonl", "trainer_state.json")
READER_OF = {"inspect": "inspect_log", "csv": "curves", "tensorboard": "curves"}  # the others are named as their folder
RUNS = [
    *(
        "areal",
        "inspect",
        "lm_eval",
        "nemo_rl",
        "open_instruct",
        "prime_rl",
        "prime_rl/older",
        "skyrl",
        "verifiers",
        "verl",
    ),
    *("trl/plain", "trl/chat", "trl/eval_mixed", "trl/reused_batch", "tensorboard/verl"),
    *("areal/rollout/3", "lm_eval/tiny-model", "prime_rl/rollouts", "prime_rl/rollouts/step_1", "skyrl/dumped_evals"),
    *("trl/plain/completions", "verl/v1", "verl/legacy/rollout", "verl/v1/validation"),
]
FILES = sorted(
    str(path.relative_to(GOLDEN))
    for path in GOLDEN.glob("*/**/*")
    if path.is_file()
    and "make" not in path.relative_to(GOLDEN).parts
    # Parts of a run that hold no rollouts of their own.
    and not path.name.startswith(("results_", "rank_", "STABLE", "grpo_sums_metadata"))
    and path.relative_to(GOLDEN) != Path("prime_rl/metrics.jsonl")  # no metric in it has a name that is known
)


@pytest.mark.parametrize("name", [*RUNS, *FILES])
def test_exactly_one_reader_claims_what_a_tool_wrote(name):
    path = GOLDEN / name
    claiming = [module.rpartition(".")[2] for module, _ in READERS if import_module(module).claims(path)]
    expected = READER_OF.get(Path(name).parts[0], Path(name).parts[0])
    if path.name in CURVES:
        expected = "curves"
    elif path.name == "traces.jsonl":
        expected = "verifiers"  # one file of a prime-rl run is a file of traces
    assert [reader for reader in claiming if reader != "plain"] == [expected]
    assert claiming[0] == expected  # the plain one comes last
    assert len({module for module, _ in READERS}) == len(READERS)


@pytest.mark.parametrize("name", RUNS)
def test_reading_by_path_alone(name):
    run = read_run(GOLDEN / name)
    assert sum(map(len, run.rollouts())) > 0 or list(run.metrics())


# ---------------------------------------------------------------- shared promises

ALL = [
    (areal, "areal"),
    (inspect_log, "inspect/match.eval"),
    (inspect_log, "inspect/match.json"),
    (lm_eval, "lm_eval"),
    (nemo_rl, "nemo_rl"),
    (open_instruct, "open_instruct"),
    (prime_rl, "prime_rl"),
    (skyrl, "skyrl"),
    (trl, "trl/plain"),
    (trl, "trl/chat"),
    (verifiers, "verifiers"),
    (verl, "verl/v1"),
    (verl, "verl/legacy"),
]


@pytest.mark.parametrize(("reader", "path"), ALL)
def test_a_stream_can_be_started_again_and_narrowed(reader, path):
    run = reader.open(GOLDEN / path)
    whole = rows_of(run)
    warned = run.warnings.lines()
    assert rows_of(run) == whole
    assert run.warnings.lines() == warned
    narrow = rows_of(run, ["group_id", "sample_index", "reward"])
    assert [(r["group_id"], r["sample_index"], r.get("reward")) for r in narrow] == [
        (r["group_id"], r["sample_index"], r.get("reward")) for r in whole
    ]
    assert all(set(r) <= {"group_id", "sample_index", "reward"} for r in narrow)


@pytest.mark.parametrize(("reader", "path"), ALL)
def test_no_unexpected_warning_and_no_zero_for_unknown(reader, path):
    run = reader.open(GOLDEN / path)
    for row in rows_of(run):
        if row.get("completion") is None and reader is not open_instruct:
            assert row.get("n_tokens") is None
            assert row.get("reward") is None
        assert row["prompt_id"]
        assert row["group_id"]
        assert row["sample_index"] is not None
        assert "extra" not in row or row["extra"] is None or isinstance(json.loads(row["extra"]), dict)
    assert not [kind for kind in run.warnings.entries if kind.startswith(("bad-", "unequal", "no-prompt", "mixed"))]
    assert json.dumps(run.to_dict())  # metadata is plain data


@pytest.mark.parametrize(
    ("reader", "name"),
    [(verl, "verl/v1/rollout/1.jsonl"), (verifiers, "verifiers/traces.jsonl"), (areal, "areal/rollout/2/11.jsonl")],
)
def test_gzip_is_seen_by_content(reader, name, tmp_path):
    source = GOLDEN / name
    copy = tmp_path / source.name
    copy.write_bytes(gzip.compress(source.read_bytes()))
    assert reader.claims(copy)
    assert [r["completion"] for r in rows_of(reader.open(copy))] == [
        r["completion"] for r in rows_of(reader.open(source))
    ]


def test_the_example_of_the_docs_page_prints_what_it_says(monkeypatch, capsys):
    root = Path(__file__).parent.parent
    blocks = re.findall(r"```(\w+)\n(.*?)```", (root / "docs/readers.md").read_text(), re.DOTALL)
    (language, code), (_, output) = blocks[:2]
    assert language == "python"
    monkeypatch.chdir(root)
    exec(compile(code, "docs/readers.md", "exec"), {})
    assert capsys.readouterr().out == output
