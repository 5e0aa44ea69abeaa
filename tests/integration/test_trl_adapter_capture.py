"""The record of a real TRL run: its figures are those that TRL logged, and writing it changes nothing."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")
pytestmark = pytest.mark.integration

from trl_runs import PROMPTS, exploring, length, make, right, trained  # noqa: E402

import equipoise as eq  # noqa: E402
from equipoise.adapters.trl import Capture, Exploration, probe_reward  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402

EVALUATION = {"prompt": PROMPTS[:8], "gold": list("abcdefgh")}  # two passes


def rows_of(folder):
    return [row for batch in eq.read(folder).rollouts() for row in batch.rows()]


def logged(trainer, name="loss"):
    return {line["step"]: line for line in trainer.state.log_history if name in line}


def test_the_record_is_diagnosed_with_the_figures_that_trl_logged(tmp_path):
    capture = Capture(tmp_path / "run", columns={"reference_answer": "gold"})
    trainer = exploring(tmp_path / "trl", "kl:coef=0.01", capture=capture, max_completion_length=5)
    trainer.train()
    lines, rows = logged(trainer), rows_of(tmp_path / "run")
    assert len(rows) == 3 * 16
    for step, line in lines.items():
        mine = [row for row in rows if row["step"] == step]
        assert np.mean([row["reward"] for row in mine]) == pytest.approx(line["reward"], abs=1e-6)
        assert np.mean([dict(row["rewards"])["right"] for row in mine]) == pytest.approx(
            line["rewards/right/mean"], abs=1e-6
        )
        assert np.mean([row["n_tokens"] for row in mine]) == pytest.approx(line["completions/mean_length"])
        assert np.mean([row["finish_reason"] == "length" for row in mine]) == pytest.approx(
            line["completions/clipped_ratio"]
        )
        gap = [np.subtract(row["logprobs_ref"], row["logprobs_train"]) for row in mine]
        k3 = np.concatenate([np.exp(d) - d - 1 for d in gap])
        assert k3.mean() == pytest.approx(line["kl"], rel=1e-4, abs=1e-6)
        groups = {}
        for row in mine:
            groups.setdefault(row["group_id"], []).append(row)
        assert [len(group) for group in groups.values()] == [4] * 4
        for group in groups.values():
            assert len({row["prompt"] for row in group}) == len({row["reference_answer"] for row in group}) == 1
            rewards = [row["reward"] for row in group]
            mean, std = np.mean(rewards), np.std(rewards, ddof=1)
            for row in group:
                assert row["advantage"] == pytest.approx((row["reward"] - mean) / (std + 1e-4), abs=1e-4)
    # The same figures through the diagnosis, whose windows are the first and the last step here.
    found = {one["measure"]: one["value"] for one in eq.diagnose(tmp_path / "run").to_dict()["findings"]}
    assert found["entropy"] == pytest.approx(lines[3]["entropy"], rel=1e-3)
    fell = lines[3]["entropy"] / lines[1]["entropy"] - 1
    assert found["entropy_change_rel"] == pytest.approx(fell, abs=1e-3)
    assert found["pass@1"] == pytest.approx(lines[3]["rewards/right/mean"], abs=1e-6)
    metrics = {line["step"]: line for line in eq.read(tmp_path / "run").metrics()}
    assert {step: line["entropy"] for step, line in metrics.items() if "entropy" in line} == {
        step: line["entropy"] for step, line in lines.items()
    }


def test_entropies_and_log_probs_are_those_of_the_model(tmp_path):
    """The first step's, by a plain softmax over the untrained model's logits."""
    import torch

    trainer = exploring(tmp_path / "trl", capture=tmp_path / "run", max_steps=1, temperature=0.7)
    from tiny import tiny_model

    trainer.train()
    model = tiny_model(trainer.processing_class)
    vocabulary = eq.read(tmp_path / "run").vocab()
    for row in rows_of(tmp_path / "run")[:6]:
        prompt = trainer.processing_class(row["prompt"])["input_ids"]
        ids = torch.tensor([[*prompt, *row["token_ids"]]])
        logp = (model(ids).logits[0, len(prompt) - 1 : -1] / 0.7).log_softmax(-1)
        taken = logp.gather(1, ids[0, len(prompt) :, None])[:, 0]
        entropy = -(logp.exp() * logp).sum(-1)
        np.testing.assert_allclose(row["logprobs_train"], taken.detach(), atol=1e-4)
        np.testing.assert_allclose(row["entropies"], entropy.detach(), atol=4e-3)
        assert "".join(vocabulary[token] for token in row["token_ids"]) == row["completion"]
        assert row["temperature"] == 0.7


def test_evaluation_is_recorded_apart_and_a_capture_can_skip_steps(tmp_path):
    capture = Capture(tmp_path / "run", every=2)
    trainer = exploring(
        tmp_path / "trl", capture=capture, eval_dataset=EVALUATION, eval_strategy="steps", eval_steps=2, max_steps=4
    )
    trainer.train()
    rows = rows_of(tmp_path / "run")
    assert sorted({(row["split"], row["step"]) for row in rows}) == [
        ("eval", 2),
        ("eval", 4),
        ("train", 1),
        ("train", 3),
    ]
    evaluated = logged(trainer, "eval_reward")
    for step in (2, 4):
        mine = [row for row in rows if row["split"] == "eval" and row["step"] == step]
        assert len({row["group_id"] for row in mine}) == len({row["prompt"] for row in mine}) == 8
        assert np.mean([row["reward"] for row in mine]) == pytest.approx(evaluated[step]["eval_reward"], abs=1e-6)
        entropies = np.concatenate([row["entropies"] for row in mine])
        assert entropies.mean() == pytest.approx(evaluated[step]["eval_entropy"], rel=2e-3)


def test_truncated_completions_that_trl_masks_are_in_the_record(tmp_path):
    # A filter of ours beside TRL's own mask: it must still see where those completions end.
    chosen = Exploration(filters=("mask_truncated", "equipoise.shaping.filters:mask_truncated"))
    settings = {"exploration": chosen, "capture": tmp_path / "run", "max_steps": 1, "max_completion_length": 4}
    trainer = exploring(tmp_path / "trl", **settings)
    trainer.train()
    cut = [row for row in rows_of(tmp_path / "run") if row["finish_reason"] == "length"]
    assert cut
    for row in cut:
        assert row["n_tokens"] == len(row["token_ids"]) == 4
        assert not any(row["loss_mask"])
    assert logged(trainer)[1]["equipoise/dropped/truncated"] == len(cut)


def test_a_disk_that_fails_stops_the_run_with_its_message(tmp_path, monkeypatch):
    trainer = exploring(tmp_path / "trl", capture=tmp_path / "run")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("equipoise.adapters.trl_record.WriterProcess.write_batches", full)
    with pytest.raises(OSError, match="No space left"):
        trainer.train()


def test_a_second_run_does_not_write_into_the_first(tmp_path):
    exploring(tmp_path / "trl", capture=tmp_path / "run", max_steps=1).train()
    with pytest.raises(UsageError, match="holds the rollouts of another run"):
        exploring(tmp_path / "again", capture=tmp_path / "run", max_steps=1).train()
    probe = probe_reward(tmp_path / "run")
    with pytest.raises(UsageError, match="holds the rollouts of another run"):
        make(tmp_path / "probed", rewards=[right, probe], reward_weights=[1.0, 0.0], max_steps=1).train()


def test_a_verdict_that_is_neither_right_nor_wrong_is_refused(tmp_path):
    with pytest.raises(UsageError, match="must be 1 for right and 0 for wrong, found 2"):
        exploring(tmp_path / "trl", capture=tmp_path / "run", correct="length").train()
    with pytest.raises(UsageError, match="must hold 0, 1 or nan"):
        exploring(tmp_path / "b", "dynamic_sampling", correct="length").train()


# ---------------------------------------------------------------- the probe


def test_the_probe_changes_no_loss_and_records_what_it_sees(tmp_path):
    wanted = trained(make(tmp_path / "plain", rewards=[length, right]))
    probe = probe_reward(tmp_path / "run", correct="right", columns={"reference_answer": "gold"})
    watched = [probe.watch(length), probe.watch(right), probe]
    trainer = make(tmp_path / "probed", rewards=watched, reward_weights=[1.0, 1.0, 0.0])
    assert trained(trainer) == wanted
    rows = rows_of(tmp_path / "run")
    assert len(rows) == 48
    for step, line in logged(trainer).items():
        mine = [row for row in rows if row["step"] == step]
        assert np.mean([dict(row["rewards"])["length"] for row in mine]) == pytest.approx(
            line["rewards/length/mean"], abs=1e-6
        )
        assert np.mean([row["correct"] for row in mine]) == pytest.approx(line["rewards/right/mean"])
        assert {len([r for r in mine if r["group_id"] == row["group_id"]]) for row in mine} == {4}
        assert math.isfinite(line["equipoise/degenerate"])
        assert line["rewards/probe/mean"] is None
        assert all(
            row["reference_answer"] == str(PROMPTS.index(row["prompt"]) + 16 * (int(row["reference_answer"]) > 15))
            for row in mine
        )


def test_a_probe_that_would_count_is_refused(tmp_path):
    trainer = make(tmp_path, rewards=[right, probe_reward(tmp_path / "run")])
    with pytest.raises(UsageError, match="weight 0"):
        trainer.train()


def test_the_run_file_says_how_the_numbers_were_made(tmp_path):
    exploring(tmp_path / "trl", "gppo", capture=tmp_path / "run", temperature=0.9)
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (told["source"], told["seed"], told["settings"]["exploration"]) == ("trl", 7, ["gppo"])
    assert told["provenance"]["entropies"]["temperature"] == 0.9


def test_the_overhead_is_the_mean_ratio_of_neighbouring_steps():
    from benchmarks.adapters.trl_run import overhead

    # Two pairs that warm up, then on before off, off before on, and a step without its other half: 9 and 99 must not count.
    # The machine is twice as slow in the last pair: a ratio of medians over all steps would take that for the capture.
    seconds = [9.0, 9.0, 9.0, 9.0, 1.02, 1.0, 2.0, 2.08, 99.0]
    captured = [True, False, True, False, True, False, False, True, True]
    own = [0.01 if on else 0.0 for on in captured]
    told = {"passes": 1, "prompts": 2, "samples": 4, "tokens": 16, "unfinished": 0}
    # The training thread is without a CPU for 30 ms of a step with the capture and 10 ms of one without; the other thread has 12 ms.
    busy = [each - (0.03 if on else 0.01) for each, on in zip(seconds, captured, strict=True)]
    threads = {"capture_seconds": own, "cpu_seconds": busy, "thread_seconds": [0.012 if on else 0.0 for on in captured]}
    found = overhead({"seconds": seconds, "captured": captured, **threads, **told})
    assert found["pairs"] == 2
    assert found["overhead"] == pytest.approx((0.02 + 0.04) / 2)
    assert found["overhead_95"] == pytest.approx([0.02, 0.04])
    assert found["training_thread_share"] == pytest.approx(0.01 / 1.55)
    idle = found["idle_seconds_on"], found["idle_seconds_off"], found["thread_cpu_seconds"]
    assert idle == pytest.approx((0.03, 0.01, 0.012))


def test_one_step_of_every_pair_is_captured_and_not_always_the_first():
    from benchmarks.adapters.trl_arm import is_on

    on = [is_on(step) for step in range(40)]
    assert all(first != second for first, second in zip(on[::2], on[1::2], strict=True))
    assert 4 < sum(on[::2]) < 16
