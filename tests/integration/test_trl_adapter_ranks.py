"""Two processes (gloo): groups that lie on both ranks, denominators over both, one record, controllers that agree."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")
pytestmark = pytest.mark.integration

import equipoise as eq  # noqa: E402

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What each rank told of each run, and the records."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}"]
    done = subprocess.run(
        [*launch, HERE / "trl_two_ranks.py", folder],
        env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = {
        case: [json.loads((folder / f"{case}-{rank}.json").read_text()) for rank in range(2)]
        for case in ("plain", "zero", "steered", "replay")
    }
    rows = {
        case: [row for batch in eq.read(folder / case).rollouts() for row in batch.rows()]
        for case in ("zero", "steered", "replay")
    }
    (average,) = (folder / "replay-trl").rglob("average/model.safetensors")
    assert load_file(average).keys() == load_file(average.parents[1] / "model.safetensors").keys()
    return told, rows


def test_coefficients_of_zero_leave_two_ranks_bit_for_bit(runs):
    found, _ = runs
    assert found["zero"][0]["figures"] == found["plain"][0]["figures"]


def test_one_record_holds_the_groups_of_both_ranks(runs):
    found, records = runs
    rows = records["zero"]
    lines = {line["step"]: line for line in found["zero"][0]["log"] if "loss" in line}
    assert len(rows) == 3 * 8
    for step, line in lines.items():
        mine = [row for row in rows if row["step"] == step]
        assert np.mean([row["reward"] for row in mine]) == pytest.approx(line["reward"], abs=1e-6)
        assert np.mean([row["n_tokens"] for row in mine]) == pytest.approx(line["completions/mean_length"])
        groups: dict[str, list] = {}
        for row in mine:
            groups.setdefault(row["group_id"], []).append(row)
        assert {len(group) for group in groups.values()} == {4}
        for group in groups.values():
            assert len({row["prompt"] for row in group}) == 1
            rewards = [row["reward"] for row in group]
            for row in group:
                wanted = (row["reward"] - np.mean(rewards)) / (np.std(rewards, ddof=1) + 1e-4)
                assert row["advantage"] == pytest.approx(wanted, abs=1e-4)


def test_a_term_is_divided_by_the_tokens_of_both_ranks_and_both_passes(runs):
    """What is logged of each pass adds up to -coef times the mean entropy of all tokens of the step, by the record."""
    rows = runs[1]["steered"]
    for line in runs[0]["steered"][0]["log"]:
        if "loss" in line:
            entropies = np.concatenate([row["entropies"] for row in rows if row["step"] == line["step"]])
            assert 2 * line["equipoise/entropy_bonus"] == pytest.approx(-0.5 * entropies.mean(), rel=1e-3)


def test_a_bonus_compares_completions_across_ranks(runs):
    rows = runs[1]["steered"]
    acted = 0
    for row in rows:
        group = [r for r in rows if (r["step"], r["group_id"]) == (row["step"], row["group_id"])]
        same = sum(r is not row and r["answer"] is not None and r["answer"] == row["answer"] for r in group)
        rewards = [r["reward"] for r in group]
        own = (row["reward"] - np.mean(rewards)) / (np.std(rewards, ddof=1) + 1e-4)
        if row["n_tokens"] > 2:
            assert row["advantages"][-1] == pytest.approx(own - 0.5 * same / 4, abs=1e-3)
            acted += same > 0
    assert acted


def test_both_ranks_hold_the_same_state(runs):
    one, other = runs[0]["steered"]
    assert one["counter"] == other["counter"]
    assert sum(sum(held.values()) for held in one["counter"]["counts"].values()) == 3 * 8
    assert one["steering"] == other["steering"]
    assert one["clip"] == other["clip"] == 1.0  # 0.2 doubled three times, at most 1


def test_both_ranks_keep_and_learn_the_same_completions(runs):
    one, other = runs[0]["replay"]
    assert one["kept"] == other["kept"]
    assert one["anchor"] == other["anchor"]
    assert len(one["anchor"]["kept"]) > 3
    assert one["weights"] == other["weights"]  # gradients of all passes went to both
    right = {(row["prompt"], tuple(row["token_ids"])) for row in runs[1]["replay"] if row["correct"]}
    assert len(one["kept"]["kept"]) == len(right) > 3


def test_what_is_imitated_is_divided_by_the_tokens_of_both_ranks_and_both_passes(runs):
    """Averaged over ranks and added over passes, as gradients are: 0.5 times −Σ ln π of three completions over all tokens of the step."""
    terms = [rank["terms"] for rank in runs[0]["replay"]]
    rows = runs[1]["replay"]
    for step in (1, 2, 3):
        passes = [each for rank in terms for each in rank if each["step"] == step]
        assert len(passes) == 4
        own = sum(row["n_tokens"] for row in rows if row["step"] == step)
        assert {each["own"] for each in passes} == {own}
        lesson = sum(each["tokens"] for each in passes)
        slow = sum(each["slow"] for each in passes)
        if step == 1:
            assert lesson == 0
            assert {each["added"] for each in passes} == {None}
            continue
        assert 0.5 * slow / (own + lesson) == pytest.approx(sum(each["added"] for each in passes) / 2, rel=1e-4)
        # Three rows over two passes of two ranks: the second rank goes along in the second pass, and adds nothing.
        assert [each["added"] > 0 for each in passes] == [True, True, True, False]


def test_an_exact_kl_is_divided_by_the_tokens_of_both_ranks_and_both_passes(runs):
    one, other = runs[0]["replay"]
    for line in one["log"]:
        if "loss" in line:
            passes = [each for each in one["terms"] + other["terms"] if each["step"] == line["step"]]
            wanted = 0.5 * sum(each["kl"] for each in passes) / passes[0]["own"]
            assert 2 * line["equipoise/kl"] == pytest.approx(wanted, rel=1e-4, abs=1e-6)
            assert wanted > 0.01 or line["step"] == 1  # policy and reference begin as one
