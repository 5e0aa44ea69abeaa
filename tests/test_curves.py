"""Training curves: what each source's keys mean, where a number came from, and what odd files lead to."""

from __future__ import annotations

import csv
import gzip
import json
import math
from pathlib import Path

import pytest

from equipoise.errors import UsageError
from equipoise.rollouts.logkeys import BY_K, KEYS, MARKERS, NAMES
from equipoise.rollouts.naming import find_names, tool_of
from equipoise.rollouts.readers import curves
from equipoise.rollouts.run import Warnings

GOLDEN = Path(__file__).parent / "golden"
REAL = Path(__file__).parent / "data" / "rl_curves"


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def metrics(path: Path, **settings):
    run = curves.open(path, **settings)
    return list(run.metrics()), run


# ---------------------------------------------------------------- real and golden files


def test_a_real_verl_curve_says_what_its_entropy_is():
    path = REAL / "ppo_qwen2.5-0.5b_gsm8k.csv"
    assert curves.claims(path)
    steps, run = metrics(path)
    with open(path, newline="") as handle:
        source = list(csv.DictReader(handle))
    assert run.info.source == "verl"
    assert [s["step"] for s in steps] == [int(row["step"]) for row in source]
    assert [s["entropy"] for s in steps] == [float(row["actor/entropy_loss"]) for row in source]
    assert [s["reward_mean"] for s in steps] == [float(row["critic/score/mean"]) for row in source]
    tested = {
        int(row["step"]): float(row["val/test_score/openai/gsm8k"])
        for row in source
        if row["val/test_score/openai/gsm8k"]
    }
    assert {s["step"]: s["eval"]["reward_mean"] for s in steps if "eval" in s} == tested
    assert len(tested) > 3
    entropy = run.info.provenance["entropy"]
    assert (entropy["key"], entropy["tool"], entropy["estimator"]) == (
        "actor/entropy_loss",
        "verl",
        "exact, full softmax",
    )
    assert (entropy["temperature"], entropy["aggregation"], entropy["mask"]) == (
        "sampling",
        "loss_agg_mode",
        "response",
    )
    # The score is before the KL penalty and comes first; the other candidate is named.
    assert run.info.provenance["reward_mean"]["others"] == ["critic/rewards/mean"]
    assert run.warnings.lines() == []


def test_a_column_called_entropy_has_no_known_estimator():
    path = REAL / "grpo_trl_qwen3-0.6b_countdown.csv"
    steps, run = metrics(path)
    assert run.info.source == "unknown"
    entropy = run.info.provenance["entropy"]
    assert entropy["key"] == "entropy"
    assert [entropy[fact] for fact in ("tool", "estimator", "temperature", "aggregation", "mask")] == [None] * 5
    assert run.info.provenance["reward_mean"]["others"] == ["mean_reward", "reward"]
    assert (steps[0]["accuracy"], steps[0]["reward_mean"], steps[0]["truncated_frac"]) == (0.65, 0.92578125, 0.0)
    assert "loss" not in steps[0]["raw"]  # the cell is empty


def test_verl_s_file_logger():
    steps, run = metrics(GOLDEN / "verl" / "metrics" / "golden" / "grpo.jsonl")
    assert [s["step"] for s in steps] == [0, 1, 2]
    assert (steps[1]["entropy"], steps[1]["kl"], steps[1]["kl_step"], steps[1]["clip_frac"]) == (
        0.95,
        0.001,
        0.0005,
        0.002,
    )
    assert steps[0]["eval"]["accuracy"] == 0.5
    assert set(steps[0]["pass_at_k"]) == {2, 4}  # best@4 is in val-core, best@2 in val-aux
    assert steps[0]["pass_at_k"][4] == steps[0]["raw"]["val-core/math_dapo/acc/best@4/mean"]
    reported = run.info.provenance["pass_at_k"]
    assert "as reported" in reported["note"]
    assert "with replacement" in reported["note"]
    assert reported["split"] == "eval"
    assert "val-aux/math_dapo/reward/best@2/mean" in reported["others"]  # another score, never mixed in
    assert "entropy" not in steps[0]  # validation before training: nothing is made up
    assert "actor/grad_norm" not in steps[2]["raw"]  # null in the file


def test_trl_s_trainer_state_keeps_evaluation_apart():
    path = GOLDEN / "trl" / "eval_mixed" / "trainer_state.json"
    assert curves.claims(path)
    steps, run = metrics(path)
    history = json.loads(path.read_text())["log_history"]
    second = [row for row in history if row["step"] == 2]
    assert [s["step"] for s in steps] == [1, 2, 3]  # training, evaluation and the summary of a step are joined
    assert steps[1]["entropy"] == second[0]["entropy"]
    assert steps[1]["eval"]["entropy"] == second[1]["eval_entropy"]
    assert "eval" not in steps[0]
    assert steps[2]["raw"]["train_runtime"] == history[-1]["train_runtime"]
    assert run.info.source == "trl"
    assert run.info.provenance["eval/reward_mean"]["key"] == "eval_reward"
    assert run.warnings.lines() == []


def test_trl_drops_reward_keys_on_reused_batches():
    steps, run = metrics(GOLDEN / "trl" / "reused_batch" / "trainer_state.json")
    assert ["reward_mean" in s for s in steps] == [True, False, True, False]
    assert all("kl" in s for s in steps)
    assert run.info.provenance["kl"]["estimator"] == "k3"


def test_tensorboard_of_verl_and_of_trl():
    steps, run = metrics(GOLDEN / "tensorboard" / "verl")
    assert {s["step"]: s["entropy"] for s in steps} == pytest.approx(
        {s: 1.2 * math.exp(-0.3 * s) for s in range(1, 7)}, rel=1e-6
    )
    assert "clip_frac" not in steps[3]  # nan at step 4
    assert [s.get("eval", {}).get("accuracy") for s in steps] == [None, None, None, None, 0.5, None]
    assert run.info.source == "verl"

    steps, run = metrics(GOLDEN / "tensorboard" / "trl" / "events.out.tfevents.1767225600.host.1.0")
    resumed = {s: 1.2 * math.exp(-0.3 * s) + (0.01 if s > 4 else 0) for s in range(1, 7)}
    assert {s["step"]: s["entropy"] for s in steps} == pytest.approx(resumed, rel=1e-6)
    assert "duplicate-step" in run.warnings.entries
    assert (run.info.source, run.info.provenance["entropy"]["key"]) == ("trl", "train/entropy")
    assert steps[2]["eval"] == pytest.approx({"reward_mean": 0.7})


def test_a_wandb_export_is_read_one_run_at_a_time_without_min_and_max():
    steps, run = metrics(GOLDEN / "csv" / "wandb_export.csv")
    assert [s["entropy"] for s in steps] == pytest.approx([1.2 * math.exp(-0.3 * s) for s in range(1, 7)])
    assert [set(s["raw"]) for s in steps] == [{"actor/entropy", "critic/score/mean"}] * 6
    assert "grpo-seed1" in run.warnings.entries["several-runs"][0]
    assert run.info.provenance["entropy"]["tool"] == "verl"


def test_a_plain_csv_with_nan_and_a_text_column():
    steps, run = metrics(GOLDEN / "csv" / "plain.csv")
    assert ["reward_mean" in s for s in steps] == [True, True, False, True, True, True]
    assert all(set(s["raw"]) <= {"entropy", "reward"} for s in steps)
    assert run.warnings.lines() == []


# ---------------------------------------------------------------- keys and names


@pytest.mark.parametrize(
    ("tool", "scalars", "expected"),
    [
        ("equipoise", {"explore/entropy": 0.4, "explore/pass_at_k/8": 0.9, "explore/coef": 0.001}, {"entropy": 0.4, "pass_at_k": {8: 0.9}, "coef": 0.001}),
        ("trl", {"entropy": 0.4, "clip_ratio/low_mean": 0.1, "frac_reward_zero_std": 0.5}, {"entropy": 0.4, "clip_low": 0.1, "group_zero_std_frac": 0.5}),
        ("verl", {"actor/entropy": 0.4, "actor/entropy_loss": 0.3, "actor/pg_clipfrac_lower": 0.2}, {"entropy": 0.4}),
        ("skyrl", {"policy/policy_entropy": 0.4, "reward/avg_raw_reward": 0.6, "reward/avg_pass_at_8": 0.9}, {"entropy": 0.4, "reward_mean": 0.6, "pass_at_k": {8: 0.9}}),
        ("tinker", {"optim/entropy": 0.4, "optim/kl_sample_train_v1": 0.01, "env/all/by_group/frac_mixed": 0.75}, {"entropy": 0.4, "mismatch": 0.01, "group_zero_std_frac": 0.25}),
        ("prime-rl", {"entropy/all/mean": 0.4, "mismatch_kl/all/mean": 0.02, "reward/all/mean": 0.6}, {"entropy": 0.4, "mismatch": 0.02, "reward_mean": 0.6}),
        ("nemo-rl", {"train/approx_entropy": 0.4, "train/reward": 0.6, "train/gen_kl_error": 0.02}, {"entropy": 0.4, "reward_mean": 0.6, "mismatch": 0.02}),
        ("openrlhf", {"train/entropy_loss": 0.4, "train/reward": 0.6, "train/ppo_clip_ratio": 0.1}, {"entropy": 0.4, "reward_mean": 0.6, "clip_frac": 0.1}),
    ],
)  # fmt: skip
def test_every_tool_is_known_by_its_keys(tmp_path, tool, scalars, expected):
    path = lines(tmp_path / "metrics.jsonl", {"step": 7} | scalars)
    assert curves.claims(path)
    steps, run = metrics(path)
    assert run.info.source == tool
    assert {k: v for k, v in steps[0].items() if k not in ("step", "raw")} == expected
    assert run.info.provenance["entropy"]["estimator"] is not None


def test_sampled_entropies_are_not_called_exact():
    exact = {row.tool for row in KEYS if row.name == "entropy" and "exact" in row.how.get("estimator", "")}
    assert exact == {"equipoise", "trl", "verl", "skyrl", "prime-rl", "openrlhf"}
    assert {row.tool for row in KEYS if row.name == "entropy"} - exact == {"tinker", "nemo-rl", None}


def test_the_table_of_keys_is_in_order():
    assert {row.name for row in KEYS} == set(NAMES)
    assert {row.tool for row in KEYS} == {None, "equipoise", *MARKERS}
    assert all(("<k>" in row.key) == (row.name in BY_K) for row in KEYS)
    same = [(row.tool, row.key) for row in KEYS]
    assert len(same) == len(set(same))


def test_our_own_keys_come_before_the_host_s():
    found = {
        f.label: f.keys[None] for f in find_names(["explore/entropy", "actor/entropy", "critic/score/mean"], "verl")
    }
    assert found == {"entropy": "explore/entropy", "reward_mean": "critic/score/mean"}


def test_pass_at_k_never_mixes_two_data_sets_or_two_scores():
    keys = ["val-core/aime/acc/best@8/mean", "val-aux/aime/acc/best@2/mean"]
    apart = ["val-aux/aime/reward/best@16/mean", "val-core/math/acc/best@4/mean"]
    (found,) = find_names([*keys, *apart], "verl")
    assert found.keys == {2: keys[1], 8: keys[0]}
    assert found.others == tuple(apart)


def test_an_evaluation_s_pass_at_k_comes_before_the_training_batch_s():
    (found,) = find_names(["reward/avg_pass_at_8", "eval/all/pass_at_4"], "skyrl")
    assert (found.row.split, found.keys, found.others) == ("eval", {4: "eval/all/pass_at_4"}, ("reward/avg_pass_at_8",))
    assert found.label == "pass_at_k"


def test_a_run_s_name_may_hold_the_separator(tmp_path):
    header = '"Step","grpo - seed2 - actor/entropy","grpo - seed2 - actor/entropy__MIN"'
    steps, run = metrics(table(tmp_path / "w.csv", f"{header}\n1,0.5,0.4\n"))
    assert steps == [{"step": 1, "entropy": 0.5, "raw": {"actor/entropy": 0.5}}]
    assert run.warnings.lines() == []


def test_a_tie_of_tools_is_no_tool():
    assert tool_of(["actor/entropy", "policy/policy_entropy"]) is None
    assert tool_of(["loss", "lr"]) is None


def test_nested_objects_and_a_reader_that_knows_its_tool():
    rows = [{"step": 1, "metrics": {"entropy": 0.5, "reward": 0.1}}, {"step": 2, "explore": {"kl": 0.2}}]
    found = curves.metrics_of_rows(rows, tool="trl", warn=Warnings())
    assert found.steps[0] == {"step": 1, "entropy": 0.5, "reward_mean": 0.1, "raw": {"entropy": 0.5, "reward": 0.1}}
    assert found.steps[1]["raw"] == {"explore/kl": 0.2}
    assert found.provenance["entropy"]["estimator"] == "exact, full softmax"


# ---------------------------------------------------------------- steps


def test_a_resumed_run_counts_the_last_value_and_says_so(tmp_path):
    rows = [(1, 0.9), (2, 0.8), (3, 0.7), (2, 0.6), (3, 0.5)]
    steps, run = metrics(lines(tmp_path / "m.jsonl", *({"step": s, "entropy": h, "reward": 0.1} for s, h in rows)))
    assert [(s["step"], s["entropy"]) for s in steps] == [(1, 0.9), (2, 0.6), (3, 0.5)]
    assert set(run.warnings.entries) == {"duplicate-step", "unordered-steps"}
    assert "2 steps" in run.warnings.entries["duplicate-step"][0]


def test_steps_out_of_order_are_sorted_with_a_warning(tmp_path):
    steps, run = metrics(table(tmp_path / "m.csv", "step,entropy\n3,0.3\n1,0.1\n2,0.2\n"))
    assert [(s["step"], s["entropy"]) for s in steps] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert list(run.warnings.entries) == ["unordered-steps"]


def test_without_a_step_column_rows_are_numbered(tmp_path):
    path = table(tmp_path / "m.csv", "entropy,reward\n0.3,0\n0.2,1\n")
    assert curves.claims(path)
    steps, run = metrics(path)
    assert [s["step"] for s in steps] == [1, 2]
    assert list(run.warnings.entries) == ["no-step"]


def test_wandb_s_own_counter_is_the_last_choice(tmp_path):
    rows = [{"_step": 40 + i, "train/global_step": 10 * i, "train/entropy": 0.5, "train/reward": 0.5} for i in range(3)]
    steps, _ = metrics(lines(tmp_path / "m.jsonl", *rows))
    assert [s["step"] for s in steps] == [0, 10, 20]


def test_rows_without_a_whole_step_are_skipped(tmp_path):
    path = table(tmp_path / "m.csv", "step,entropy\n1,0.3\n,0.2\n2.5,0.1\n4.0,0.05\n")
    steps, run = metrics(path)
    assert [s["step"] for s in steps] == [1, 4]
    assert run.warnings.entries["bad-step"][1] == 2


def test_several_runs_in_one_file_are_refused(tmp_path):
    rows = [f"{arm},{step},{0.5 + step / 10}" for arm in ("base", "primed", "dots") for step in range(4)]
    path = table(tmp_path / "m.csv", "\n".join(["condition,step,accuracy", *rows, rows[-1]]) + "\n")
    with pytest.raises(UsageError, match=r"several runs in one file.*condition.*base, dots, primed"):
        curves.open(path)
    # A time stamp tells rows apart too, and is no run.
    stamped = [f"2026-01-01 10:0{i},{step},0.5" for i, step in enumerate((1, 2, 3, 2, 3, 4))]
    steps, run = metrics(table(tmp_path / "t.csv", "\n".join(["time,step,accuracy", *stamped]) + "\n"))
    assert [s["step"] for s in steps] == [1, 2, 3, 4]
    assert "duplicate-step" in run.warnings.entries


def test_metrics_can_be_read_again_and_changed_without_harm(tmp_path):
    run = curves.open(lines(tmp_path / "m.jsonl", {"step": 1, "entropy": 0.5}))
    next(run.metrics())["entropy"] = 9
    assert next(run.metrics())["entropy"] == 0.5
    assert list(run.rollouts()) == []


# ---------------------------------------------------------------- what is and is not a curve


@pytest.mark.parametrize(
    "text",
    [
        "step,prompt,completion,reward\n1,a,b,0\n",
        "step,prompt_id,correct,reward\n1,a,1,0\n",
        "problem_id,accuracy,entropy\n1,0.5,0.1\n",
        "step,loss,learning_rate\n1,0.5,0.1\n",
        "entropy\n0.5\n",
        '{"step": 1, "input": "q", "output": "a", "score": 1.0}\n',
        '{"step": 1, "reward": 1.0, "messages": []}\n',
        "",
        "\x00\x01\x02",
    ],
)
def test_other_files_are_left_to_other_readers(tmp_path, text):
    assert not curves.claims(table(tmp_path / "file", text))


def test_claims_never_raises(tmp_path):
    assert not curves.claims(tmp_path / "missing")
    assert not curves.claims(tmp_path)
    broken = tmp_path / "m.jsonl.gz"
    broken.write_bytes(gzip.compress(b'{"step": 1, "entropy": 0.5}\n' * 50)[:40])
    curves.claims(broken)
    assert not curves.claims(GOLDEN / "trl" / "plain" / "completions" / "completions_00001.parquet")
    assert not curves.claims(GOLDEN / "verl" / "v1" / "rollout" / "1.jsonl")
    assert not curves.claims(table(tmp_path / "x.json", '{"a": 1}'))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters_byte_order_mark_and_gzip(tmp_path, delimiter):
    text = "step,entropy,reward\n1,0.5,0.25\n".replace(",", delimiter)
    path = tmp_path / "m.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    assert curves.claims(path)
    assert metrics(path)[0] == [
        {"step": 1, "entropy": 0.5, "reward_mean": 0.25, "raw": {"entropy": 0.5, "reward": 0.25}}
    ]


def test_damaged_lines_are_skipped_with_a_warning(tmp_path):
    steps, run = metrics(table(tmp_path / "m.csv", "step,entropy,kl\n1,0.5,0.1\n2,0.4\n3,0.3,0.1,9\n4,0.2,x\n5,0."))
    assert [s["step"] for s in steps] == [1, 4]
    assert "kl" not in steps[1]
    assert run.warnings.entries["bad-line"][1] == 3
    steps, run = metrics(table(tmp_path / "m.jsonl", '{"step": 1, "entropy": 0.5}\n[]\n{"step": 2, "ent'))
    assert [s["step"] for s in steps] == [1]
    assert set(run.warnings.entries) == {"bad-line", "truncated"}


def test_bad_input_is_one_line_that_says_what_would_work(tmp_path):
    cases = [
        (table(tmp_path / "a.csv", "step,loss\n1,0.5\n"), {}, "no metric known here: its keys are loss"),
        (table(tmp_path / "b.csv", "step,entropy\n"), {}, "it has no numbers"),
        (table(tmp_path / "c.json", "[]"), {}, "no log_history"),
        (table(tmp_path / "d.csv", "step,h\n1,0.5\n"), {"columns": {"entropi": "h"}}, "did you mean 'entropy'"),
        (
            table(tmp_path / "e.csv", "step,h\n1,0.5\n"),
            {"columns": {"entropy": "g"}},
            "unknown key for entropy 'g'.*known are h",
        ),
        (
            table(tmp_path / "f.csv", "it,entropy\n1,0.5\n"),
            {"columns": {"step": "iter"}},
            "unknown key for step 'iter'",
        ),
        (tmp_path / "missing.csv", {}, "cannot read"),
        (tmp_path, {}, "no event files"),
    ]
    for path, settings, message in cases:
        with pytest.raises(UsageError, match=message) as caught:
            curves.open(path, **settings)
        assert "\n" not in str(caught.value)


def test_the_caller_can_name_the_columns(tmp_path):
    path = table(tmp_path / "m.csv", "iter,H,reward\n10,0.5,1\n20,0.4,1\n")
    steps, run = metrics(path, columns={"step": "iter", "entropy": "H"})
    assert [(s["step"], s["entropy"]) for s in steps] == [(10, 0.5), (20, 0.4)]
    assert run.info.provenance["entropy"]["key"] == "H"
    assert run.info.provenance["entropy"]["estimator"] is None


def test_event_files_of_two_runs_in_one_folder_are_refused(tmp_path):
    event = (GOLDEN / "tensorboard" / "verl" / "events.out.tfevents.1767225600.host.1.0").read_bytes()
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "events.out.tfevents.1.h").write_bytes(event)
    assert curves.claims(tmp_path)
    with pytest.raises(UsageError, match=r"event files of 2 runs \(a, b\)"):
        curves.open(tmp_path)
    (tmp_path / "a" / "events.out.tfevents.2.h").write_bytes(event)  # a restart of the same run
    steps, run = metrics(tmp_path / "a")
    assert len(steps) == 6
    assert "duplicate-step" in run.warnings.entries
