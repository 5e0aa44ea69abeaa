"""Completions that are kept and imitated, and the average of the weights: what enters an update, what it costs, and what 0 leaves."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from slow_training import CAREFUL, Slow, assert_near, grpo_advantages, newest, ppo, step_rows
from tiny_training import TASK, TOKENS, config_of, read_metrics

from equipoise.base import Answer, Completion, Grade, Problem
from equipoise.errors import UsageError
from equipoise.models.checkpoint import load_gpt
from equipoise.models.generate import pad_left
from equipoise.models.samples import Samples
from equipoise.rollouts.groups import Groups
from equipoise.shaping.shelf import BaseAnchor, RareReplay, unseen
from equipoise.tasks.table import find_task
from equipoise.training.checkpoints import complete_checkpoints, load_weights
from equipoise.training.collect import Batch, collect
from equipoise.training.lessons import as_samples, collect_anchor, lesson_of, right_rows

ONE_STEP = {"learning": CAREFUL | {"steps": 1, "rows": 7}, "save_every": 1}


def kept_of(folder, name):
    state = json.loads((complete_checkpoints(folder)[-1][1] / "state.json").read_text())
    return state["shelves"][name]["kept"]


def as_row(kept):
    """As a recorded row, for the slow trainer."""
    _, prompt, ids = kept
    return {"prompt": TOKENS.decode(prompt), "token_ids": ids, "n_tokens": len(ids)}


def batch_of(texts, right):
    """Problem i with these texts; what is in `right` is right, "?" is not judged."""
    grades = [
        Grade(None, "timeout", None) if t == "?" else Grade(Answer(t), "right" if t in right else "wrong", float(t in right))
        for row in texts
        for t in row
    ]  # fmt: skip
    shape = np.shape(texts)
    correct_PG = np.array([np.nan if g.correct is None else float(g.correct) for g in grades]).reshape(shape)
    ids = [TOKENS.encode(t) if t != "?" else [1] for row in texts for t in row]
    prompts = [TOKENS.encode("1" * (i + 1)) for i in range(shape[0])]
    prompt_ids, prompt_mask = pad_left(prompts, shape[0], pad=TOKENS.pad)
    longest = max(map(len, ids))
    mask = torch.tensor([[i < len(each) for i in range(longest)] for each in ids])
    padded = torch.tensor([[*each, *[TOKENS.pad] * (longest - len(each))] for each in ids])
    samples = Samples(
        prompt_ids, prompt_mask, torch.arange(len(ids)) // shape[1], padded, mask, *[mask.float()] * 2, ()
    )
    return Batch(
        [Problem(f"p{i}", None, "1" * (i + 1), "") for i in range(shape[0])],
        [Completion(t, token_ids=each) for t, each in zip([t for row in texts for t in row], ids, strict=True)],
        grades,
        Groups(tuple(map(str, range(shape[0]))), np.ones(shape, dtype=bool), correct_PG=correct_PG),
        np.array(texts, dtype=object),
        samples,
    )


# ---------------------------------------------------------------- what is kept


def test_rare_are_right_completions_of_groups_with_few_right_ones():
    batch = batch_of([["1", "2", "3", "4"], ["1", "1", "2", "4"], ["1", "?", "?", "3"]], right={"1"})
    # 1 of 4 | 2 of 4 | 1 of the 2 that were judged
    assert [(name, TOKENS.decode(ids)) for name, _, ids in right_rows(batch, most_rate=0.25)] == [("p0", "1")]
    assert [name for name, _, _ in right_rows(batch, most_rate=0.5)] == ["p0", "p1", "p1", "p2"]
    assert [TOKENS.decode(prompt) for _, prompt, _ in right_rows(batch, most_rate=1)] == ["1", "11", "11", "111"]


def test_a_text_of_a_problem_is_kept_once_and_the_oldest_go():
    shelf = RareReplay(most_rate=1.0, size=3)
    shelf.keep(right_rows(batch_of([["1", "1", "2", "9"], ["1", "8", "8", "8"]], right={"1", "2"}), most_rate=1))
    assert [(name, TOKENS.decode(ids)) for name, _, ids in shelf.kept] == [("p0", "1"), ("p0", "2"), ("p1", "1")]
    shelf.keep(right_rows(batch_of([["3", "1", "9", "9"]], right={"1", "3"}), most_rate=1))
    assert [(name, TOKENS.decode(ids)) for name, _, ids in shelf.kept] == [("p0", "2"), ("p1", "1"), ("p0", "3")]
    assert unseen([("a", [1], [2]), ("a", [1], [2])], []) == [("a", [1], [2])]


def test_an_anchor_keeps_what_was_drawn_or_every_text_once():
    batch = batch_of([["1", "1", "2", "9"]], right={"1", "2"})
    raw, once = BaseAnchor(problems=2), BaseAnchor(problems=2, once=True)
    for anchor in (raw, once):
        collect_anchor(anchor, [None, None], lambda problems: batch, most=1)  # the same batch twice
    assert [TOKENS.decode(ids) for _, _, ids in raw.kept] == ["1", "1", "2"] * 2
    assert [TOKENS.decode(ids) for _, _, ids in once.kept] == ["1", "2"]
    assert (raw.drawn, raw.tokens_drawn) == (8, 8)


def test_draws_follow_from_seed_and_step_and_take_each_at_most_once():
    shelf = RareReplay(rows=4, most_rate=1.0)
    shelf.kept = [(f"p{i}", [5], [i + 3]) for i in range(10)]

    def drawn(step, seed=0):
        lesson = lesson_of(shelf, step, seed=seed, tokens=TOKENS, device=torch.device("cpu"))
        return lesson.samples.ids_BT[:, 0].tolist()

    assert drawn(1) == drawn(1)
    assert len(set(drawn(1))) == 4
    assert len({tuple(drawn(step)) for step in range(5)} | {tuple(drawn(1, seed=7))}) == 6
    shelf.rows = 99
    assert sorted(drawn(1)) == list(range(3, 13))


def test_kept_completions_become_rows_padded_on_their_sides():
    made = as_samples([("a", [7, 8], [3]), ("b", [9], [4, 5, 6])], pad=0, device=torch.device("cpu"))
    assert made.prompt_ids_PL.tolist() == [[7, 8], [0, 9]]
    assert made.prompt_mask_PL.tolist() == [[True, True], [False, True]]
    assert made.ids_BT.tolist() == [[3, 0, 0], [4, 5, 6]]
    assert made.mask_BT.tolist() == [[True, False, False], [True, True, True]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BaseAnchor(coef=-1), "base_anchor needs rows >= 1 and coef >= 0"),
        (lambda: RareReplay(rows=0), "rare_replay needs rows >= 1"),
        (lambda: BaseAnchor(problems=0), "problems >= 1"),
        (lambda: RareReplay(most_rate=0), "0 < most_rate <= 1"),
        (lambda: RareReplay(size=0), "size >= 1"),
        (lambda: RareReplay().restore({"kept": [], "more": 1}), "a state of rare_replay has kept"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()


# ---------------------------------------------------------------- what an update makes of them


def test_an_anchor_is_the_base_model_s_right_completions_and_enters_the_update(run, model):
    spec = "base_anchor:problems=12,rows=1000,coef=0.5"
    folder = run(method={"demonstrations": (spec,)}, **ONE_STEP)
    rows, kept, line = step_rows(folder, 1), kept_of(folder, "base_anchor"), read_metrics(folder)[1]
    # The same draws by hand, from the base model.
    policy, tokens = load_gpt(model)
    task = find_task(TASK)
    problems = task.problems((0, "base_anchor"), 12)
    drawn = collect(
        policy, tokens, task, problems, seed=(0, "anchor"), samples=6, temperature=1.0, max_tokens=9
    )  # fmt: skip
    right = [list(c.token_ids) for c, g in zip(drawn.completions, drawn.grades, strict=True) if g.correct]
    assert [ids for _, _, ids in kept] == right != []
    slow = Slow(model)
    lessons = [as_row(each) for each in kept]
    loss, norm = slow.update(rows, grpo_advantages(rows), ppo, lr=0.5e-4, lessons=lessons, coef=0.5)
    assert line["loss"] == pytest.approx(loss, abs=1e-6)
    assert line["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert_near(newest(folder, "optimiser"), slow.moments(), 1e-6)
    assert line["rollouts"] == len(rows) + 12 * 6
    assert line["tokens"] == sum(row["n_tokens"] for row in rows) + sum(c.n_tokens for c in drawn.completions)
    assert line["base_anchor/rows"] == line["base_anchor/kept"] == len(right)


def test_what_a_step_kept_is_replayed_in_the_next(run, model):
    spec = "rare_replay:most_rate=1,rows=1000,coef=0.25"
    folder = run(method={"demonstrations": (spec,)}, learning=CAREFUL | {"rows": 7}, save_every=1)
    lines, slow = read_metrics(folder)[1:], Slow(model)
    assert lines[0]["rare_replay/rows"] == 0 < lines[0]["rare_replay/kept"] == lines[1]["rare_replay/rows"]
    first = step_rows(folder, 1)
    lessons = {(row["group_id"], row["completion"]): row for row in reversed(first) if row["correct"]}
    assert len(lessons) == lines[1]["rare_replay/rows"]
    slow.update(first, grpo_advantages(first), ppo, lr=0.5e-4)
    second = step_rows(folder, 2)
    loss, _ = slow.update(
        second, grpo_advantages(second), ppo, lr=1e-4, lessons=list(lessons.values()), coef=0.25
    )  # fmt: skip
    assert lines[1]["loss"] == pytest.approx(loss, abs=1e-5)
    assert_near(newest(folder, "optimiser"), slow.moments(), 1e-5)


@pytest.mark.parametrize("spec", ["base_anchor:problems=6,coef=0", "rare_replay:most_rate=1,coef=0"])
def test_a_coefficient_of_0_leaves_the_run_as_it_was_bit_for_bit(run, spec):
    plain, idle = run(), run(method={"demonstrations": (spec,)})
    assert_near(newest(idle), newest(plain), 0)
    assert_near(newest(idle, "optimiser"), newest(plain, "optimiser"), 0)
    name = spec.partition(":")[0]
    assert all(line[f"{name}/rows"] == 0 < line[f"{name}/kept"] for line in read_metrics(idle)[1:])  # not a pass more


def test_two_kinds_of_lessons_add_up(run):
    both = ("base_anchor:problems=6,rows=4", "rare_replay:most_rate=1,rows=4")
    folder = run(method={"demonstrations": both}, learning={"steps": 3, "updates": 2})
    assert all(line["base_anchor/nll"] > 0 for line in read_metrics(folder)[1:])
    assert read_metrics(folder)[3]["rare_replay/nll"] > 0


def test_rollouts_of_an_anchor_are_counted_ahead(tmp_path):
    plain = config_of(tmp_path, tmp_path)
    anchored = config_of(tmp_path, tmp_path, method={"demonstrations": ("base_anchor:problems=12",)})
    assert plain.most_rollouts == 6 * 6 * 6
    assert anchored.most_rollouts == plain.most_rollouts + 12 * 6
    assert config_of(tmp_path, tmp_path, method={"demonstrations": ("rare_replay",)}).most_rollouts == 216


# ---------------------------------------------------------------- the average of the weights


def test_the_average_follows_every_step_and_training_does_not_read_it(run, model):
    folder = run(learning={"ema": 0.8, "steps": 2}, save_every=1)
    plain = run(learning={"steps": 2}, save_every=1)
    assert_near(newest(folder), newest(plain), 0)
    steps = sorted((folder / "checkpoints").glob("step=*"))
    base = load_gpt(model)[0].state_dict()
    after = [load_file(step / "model.safetensors") for step in steps]
    for name, tensor in load_file(steps[-1] / "ema.safetensors").items():
        expected = 0.8 * (0.8 * base[name] + 0.2 * after[0][name]) + 0.2 * after[1][name]
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-6)
    step, found = load_weights(folder, ema=True)
    assert step == 2
    assert_near(found, load_file(steps[-1] / "ema.safetensors"), 0)
    assert not any(path.name == "ema.safetensors" for path in plain.rglob("*"))
