"""Reward functions in TRL's signature, called as TRL calls them."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("trl", reason="needs trl: pip install 'equipoise[trl]'")
pytestmark = pytest.mark.integration

import torch  # noqa: E402
from trl.rewards import get_soft_overlong_punishment  # noqa: E402
from trl_runs import PROMPTS, make, right  # noqa: E402

from equipoise.adapters.trl import (  # noqa: E402
    KeepState,
    batch_reward,
    brier_reward,
    overlong_reward,
    reference_reward,
    ucb_reward,
)
from equipoise.base import Answer  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402


def yes(completions, **columns):
    return [1.0 if "yes" in str(text) else 0.0 if "no" in str(text) else None for text in completions]


def test_brier_by_hand():
    texts = ["yes, confidence: 0.8", "no, confidence: 0.8", "no idea", "yes", "?? confidence: 0.5"]
    found = brier_reward(yes, weight=0.5)(prompts=["q"] * 5, completions=texts)
    assert found[:4] == pytest.approx([1 - 0.5 * 0.04, -0.5 * 0.64, -0.5, -0.5])
    assert found[4] is None  # nobody says whether it is right
    chat = [[{"role": "assistant", "content": text}] for text in texts]
    assert brier_reward(yes, weight=0.5)(prompts=["q"] * 5, completions=chat) == found


def test_overlong_is_trls_own():
    lengths = [1, 50, 80, 81, 99, 100, 101, 500]
    ids = [[7] * n for n in lengths]
    ours = overlong_reward(limit=100, buffer=20)(prompts=ids, completions=ids, completion_ids=ids)
    assert ours == pytest.approx(get_soft_overlong_punishment(100, 20)(completion_ids=ids))


def test_batch_reward_by_hand():
    texts = ["\\boxed{1}", "\\boxed{1.0}", "\\boxed{2}", "?"] + ["\\boxed{yes 3}"] * 4
    found = batch_reward(correct=yes, group_size=4)(
        prompts=["q"] * 8, completions=[t + " no" * (n < 4) for n, t in enumerate(texts)]
    )
    assert found == pytest.approx(
        [-0.05, -0.05, 0, 0, 0, 0, 0, 0]
    )  # 1 and 1.0 are one answer; the second group is all right
    with pytest.raises(UsageError, match="group_size"):
        batch_reward(correct=yes)(prompts=["q"] * 8, completions=texts)
    with pytest.raises(UsageError, match="no whole groups"):
        batch_reward(correct=yes, group_size=3)(prompts=["q"] * 8, completions=texts)


def test_ucb_counts_over_the_steps():
    reward = ucb_reward("ucb_constant:weight=1.0,baseline=0.5,unless_all_right=False", group_size=2)

    def ask(*answers):
        return reward(prompts=["q"] * 2, completions=[f"\\boxed{{{a}}}" for a in answers])

    assert ask(1, 1) == [0.5, 0.5]  # never seen
    assert ask(1, 2) == pytest.approx([math.sqrt(1 / 2) - 0.5, 0.5])
    assert ask(1, 1) == pytest.approx([math.sqrt(1 / 3) - 0.5] * 2)
    assert reward.counter.count(["q"], np.array([[None]], dtype=object)).shape == (1, 1)


def test_ucb_in_a_real_run_is_kept_with_checkpoints_and_not_fed_by_evaluation(tmp_path):
    from datasets import Dataset

    def build(folder):
        reward = ucb_reward("ucb_mean", correct=right, read=lambda text: Answer(text[:1]) if text else None)
        given = {"eval_dataset": {"prompt": PROMPTS[:4]}}
        trainer = make(folder, rewards=[right, reward], given=given, max_steps=2, save_strategy="steps", save_steps=1)
        trainer.add_callback(KeepState(counter=reward.counter))
        return trainer, reward

    assert Dataset is not None
    trainer, reward = build(tmp_path)
    trainer.train()
    counted = reward.counter.state()
    assert sum(sum(held.values()) for held in counted["counts"].values()) == 32
    trainer.evaluate()
    assert reward.counter.state() == counted
    again, fresh = build(tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert fresh.counter.state() == counted


def test_the_reference_is_scored_by_the_model_in_place_of_the_answer(tmp_path):
    """ln p of each reference token after prompt and chain of thought, one row at a time, and the paper's weights by a loop."""

    def read(text):
        at = text.find("e")
        return None if at < 0 else Answer("e", (at, len(text)))

    seen = {}
    reward = reference_reward("gold", read=read)

    def watched(**given):
        seen.update(
            given,
            rewards=reward(**given),
            weights=[p.detach().clone() for p in given["log_metric"].__self__.model.parameters()],
        )
        return seen["rewards"]

    trainer = make(tmp_path, rewards=[watched, right], max_steps=1, num_generations=4)
    trainer.train()
    from tiny import tiny_model

    model, tokenizer = tiny_model(trainer.processing_class), trainer.processing_class
    special = set(tokenizer.all_special_ids)
    scores = []
    for prompt, ids, gold in zip(seen["prompts"], seen["completion_ids"], seen["gold"], strict=True):
        chain, texts = [], [("" if t in special else tokenizer.decode([t])) for t in ids]
        end = next((n for n, text in enumerate(texts) if text == "e"), None)
        if end is None:
            end = max((n + 1 for n, text in enumerate(texts) if text), default=0)
        chain = ids[:end]
        reference = tokenizer(gold)["input_ids"]
        before = [*tokenizer(prompt)["input_ids"], *chain]
        logp = model(torch.tensor([[*before, *reference]])).logits[0].log_softmax(-1)
        scores.append([logp[len(before) - 1 + j, token].item() for j, token in enumerate(reference)])
    for first in range(0, 16, 4):
        group = np.array(scores[first : first + 4])
        sigma = group.std(axis=0)
        for place in range(4):
            assert seen["rewards"][first + place] == pytest.approx(
                float((sigma * group[place]).sum()), rel=1e-3, abs=1e-5
            )
