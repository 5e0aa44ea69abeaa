"""Every training method of the catalogue runs in the trainer, but for those named here, and gets what it reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import mean, pstdev, stdev

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from slow_training import CAREFUL, Slow, assert_near, grpo_advantages, newest, ppo, step_rows
from tiny_training import TASK, config_of, read_metrics

from equipoise.base import Answer, Completion, Grade
from equipoise.catalogue.settings import SLOTS
from equipoise.catalogue.table import methods
from equipoise.errors import UsageError
from equipoise.models.characters import Characters
from equipoise.tasks.table import find_task
from equipoise.text.degenerate import find_degenerate
from equipoise.text.phrases import Span
from equipoise.training import collect
from equipoise.training.loop import train
from equipoise.training.recipe import Method
from equipoise.training.shape import Shaper

# What the trainer would need for each, and does not have.
CANNOT = {
    "vector_rewards": "several answers in one completion",
    "reference_within_reach": "a set of problems that is filtered before training",
    "reference_spread": "a set of problems that is ranked as a whole",
    "critique_data": "a file between two rounds of training",
    "diverse_demonstrations": "rollouts that are recorded already",
}
TRAINING = [method for method in methods() if method.loop == "training"]
# What a method acts on where that is not part of every run, and settings that suit a small one.
BESIDE = {
    "anneal_k": {"advantage": "passk_training", "controllers": ("anneal_k:start=8",)},
    "base_anchor": {"demonstrations": ("base_anchor:problems=9",)},
    "scouting": {"allocation": "scouting:scouts=5,first=2"},
}


@dataclass(frozen=True)
class Nameless:
    """Countdown whose problems come without a solution."""

    env: str = "nameless"

    def problems(self, seed, n, *, split="train"):
        made = find_task(TASK).problems(seed, n, split=split)
        return [replace(problem, reference=None) for problem in made]

    def grade(self, problem, completion):
        return find_task(TASK).grade(problem, completion)


def slots_of(method):
    slot = SLOTS[method.kind]
    return {slot: (method.name,) if isinstance(Method.model_fields[slot].default, tuple) else method.name}


@pytest.mark.parametrize("name", [method.name for method in TRAINING if method.name not in CANNOT])
def test_a_method_of_the_catalogue_trains(run, name):
    [method] = [method for method in TRAINING if method.name == name]
    folder = run(
        method={"bonus_on_answer": True, **slots_of(method), **BESIDE.get(name, {})},
        sampling={"prompts": 3, "samples": 8, "pool": 6},
        learning={"steps": 1, "updates": 2},
        evaluation={"problems": 2, "samples": 1},
    )
    line = read_metrics(folder)[1]
    assert line.get("loss") is not None or line.get("dropped/degenerate") == 24


def test_a_method_that_cannot_train_is_named_with_what_it_would_need(tmp_path):
    assert {method.name for method in TRAINING if method.lacking} == set(CANNOT)
    for method in TRAINING:
        if method.lacking:
            assert CANNOT[method.name] in method.lacking
            with pytest.raises(ValidationError, match=f"{method.name} cannot run in this trainer: it needs"):
                config_of(tmp_path / "run", tmp_path / "none", method=slots_of(method))


def test_code_outside_the_catalogue_that_needs_what_is_not_measured_is_refused_before_anything_is_written(
    tmp_path, model
):
    method = {"advantage": "equipoise.shaping.vector_rewards:vector_advantage:draws=9,alpha=1,seed=0"}
    with pytest.raises(UsageError, match=r"needs reward_PGMK, answer_PGM, prompt_ids_P: this trainer has keep_PG"):
        train(config_of(tmp_path / "run", model, method=method))
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- flags of the texts


def test_degenerate_texts_are_left_out_and_counted(run, monkeypatch):
    """Flags are faked by a rule on the text: which completions are dropped must follow it, and only right ones for shortcuts."""

    def flagged(text, *, answer):
        return type("Flags", (), {"flags": ("loop",) if text.count("-") else ()})

    monkeypatch.setattr(collect, "find_degenerate", flagged)
    for name in ("degenerate", "shortcuts"):
        folder = run(method={"filters": (name,)}, learning={"steps": 2})
        for step in (1, 2):
            rows = step_rows(folder, step)
            out = [r for r in rows if "-" in r["completion"] and (name == "degenerate" or r["correct"])]
            assert 0 < len(out) < len(rows)
            assert sum(v for k, v in read_metrics(folder)[step].items() if k.startswith("dropped/")) == len(out)
            assert all(row["advantage"] == 0 for row in out)


def test_the_flags_are_those_of_the_text():
    looping = "so it is 7 then " * 40
    assert find_degenerate(looping, answer=None).flags
    batch = collect.Batch(
        [],
        [Completion(looping), Completion("3+4"), Completion(None)],
        [Grade(None, "wrong", 0.0)] * 3,
        None,
        np.empty((1, 3), dtype=object),
        None,
    )
    assert batch.degenerate_PG[0, :2].tolist() == [1, 0]
    assert batch.degenerate_PG[0, 2] != batch.degenerate_PG[0, 2]  # nan: there is no text


def test_a_form_that_no_checker_speaks_of_is_not_measured():
    texts, shape = [Completion("a"), Completion("b")], np.empty((1, 2), dtype=object)
    said = [Grade(None, "wrong", 0.0, format_ok=True), Grade(None, "wrong", 0.0, format_ok=False)]
    unsaid = [Grade(None, "wrong", 0.0)] * 2
    assert collect.Batch([], texts, said, None, shape, None).format_ok_PG.tolist() == [[1, 0]]
    assert collect.Batch([], texts, unsaid, None, shape, None).format_ok_PG is None


# ---------------------------------------------------------------- tokens that are marked


def test_planning_and_answer_tokens_are_those_that_touch_their_spans():
    tokens = Characters("abcdefghijklmnopqrstuvwxyz .,0123456789")
    text = "so wait, it is 42"
    completion = Completion(text, token_ids=[*tokens.encode(text), *tokens.stop])
    grade = Grade(Answer("42", span=(15, 17)), "right", 1.0)
    batch = collect.Batch([], [completion], [grade], None, None, None)
    for name, marked in (("planning_BT", "wait"), ("answer_BT", "42")):
        [row] = collect.mark_tokens(name, batch, tokens, (1, 20))
        start = text.index(marked)
        assert [place for place, is_marked in enumerate(row) if is_marked] == list(range(start, start + len(marked)))


def test_an_answer_after_thinking_is_marked_after_the_thinking():
    tokens = Characters("0123456789+[]", thinking=("[", "]"))
    whole = "[1+2]2+1"
    completion = Completion("2+1", thinking="1+2", token_ids=[*tokens.encode(whole), *tokens.stop])
    batch = collect.Batch([], [completion], [Grade(Answer("1+2", span=(0, 3)), "right", 1.0)], None, None, None)
    [row] = collect.mark_tokens("answer_BT", batch, tokens, (1, 10))
    assert [place for place, is_marked in enumerate(row) if is_marked] == [5, 6, 7]


def test_planning_credit_weighs_the_tokens_that_plan(run, model, monkeypatch):
    # No phrase of the table can be written in digits: a plus sign stands for one.
    def plus_signs(text):
        return [Span("plan", "+", at, at + 1) for at, letter in enumerate(text) if letter == "+"]

    monkeypatch.setattr(collect, "planning_spans", plus_signs)
    folder = run(method={"weights": ("planning_credit:alpha=0.5",)}, learning=CAREFUL | {"steps": 1, "rows": 7})
    slow, rows = Slow(model), step_rows(folder, 1)

    def credited(row, t, logp_V, ref_V, advantage):
        plans = slow.tokens.decode([row["token_ids"][t]]) == "+"
        sign = (advantage > 0) - (advantage < 0)
        return ppo(row, t, logp_V, ref_V, advantage) * (1 + 0.5 * sign if plans else 1)

    slow.update(rows, grpo_advantages(rows), credited, lr=0.5e-4)
    assert_near(newest(folder, "optimiser"), slow.moments(), 1e-6)


# ---------------------------------------------------------------- reference answers


@pytest.mark.parametrize("max_tokens", [4, 9])
def test_the_likelihood_of_the_reference_is_that_after_each_chain_of_thought(run, model, max_tokens):
    """A text cut after 4 characters has no readable answer and is a chain as a whole; an answer alone leaves none before it."""
    folder = run(
        method={"rewards": ("reference_likelihood:power=2",)},
        learning=CAREFUL | {"steps": 1, "rows": 7},
        sampling={"max_tokens": max_tokens},
    )
    rows, slow = step_rows(folder, 1), Slow(model)
    rewards = {}
    for group in dict.fromkeys(row["group_id"] for row in rows):
        own = [row for row in rows if row["group_id"] == group]
        logp = [_reference_logp(slow, row) for row in own]
        spread = [pstdev(column) for column in zip(*logp, strict=True)]
        rewards[group] = [
            row["reward"] + sum(s**2 * value for s, value in zip(spread, each, strict=True))
            for row, each in zip(own, logp, strict=True)
        ]
    expected = [
        0.0 if max(r) - min(r) < 1e-9 else (value - mean(r)) / (stdev(r) + 1e-6)
        for r in rewards.values()
        for value in r
    ]
    assert {row.get("answer") is None for row in rows} == {max_tokens == 4}
    assert [row["advantage"] for row in rows] == pytest.approx(expected, abs=1e-3)
    assert (expected == pytest.approx(grpo_advantages(rows), abs=1e-3)) == (max_tokens == 9)


def _reference_logp(slow, row):
    chain = row["completion"] if row.get("answer") is None else ""
    reference = slow.tokens.encode(row["reference_answer"])
    with torch.no_grad():
        logp_TV = slow.log_softmax(slow.policy, {"prompt": row["prompt"] + chain, "token_ids": reference})
    return [float(logp_TV[t, token]) for t, token in enumerate(reference)]


def test_a_task_without_references_is_told_of_in_one_line(tmp_path, model):
    changes = {"task": "test_training_methods:Nameless", "method": {"rewards": ("reference_likelihood",)}}
    with pytest.raises(UsageError, match="has no reference answer to score") as told:
        train(config_of(tmp_path / "run", model, **changes))
    assert "\n" not in str(told.value)


def test_only_what_is_asked_for_is_scored():
    assert Shaper(Method(rewards=("reference_likelihood",))).needs_references
    assert not Shaper(Method(rewards=("brier",))).needs_references
    assert not any(row for row in (Shaper(Method()).needs_references, Shaper(Method()).needs_answer))
