"""Which problems a step poses: fresh ones, a pool, a curriculum, and others in place of those without signal."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.torch import load_file
from tiny_training import TASK, config_of, read_metrics, read_rollouts

from equipoise.errors import UsageError
from equipoise.rollouts.groups import Groups
from equipoise.tasks.table import find_task
from equipoise.training.checkpoints import load_checkpoint
from equipoise.training.loop import train
from equipoise.training.problems import ProblemSource

SMALL = find_task("countdown:numbers=3,largest=5,operators=+-")


def ids(problems):
    return [problem.id for problem in problems]


def verdicts(problems, right):
    """Four completions of each problem, all right where its id is in `right` and all wrong elsewhere."""
    correct = np.array([[float(problem.id in right)] * 4 for problem in problems])
    return Groups(tuple(ids(problems)), np.ones(correct.shape, dtype=bool), correct_PG=correct)


# ---------------------------------------------------------------- the source


def test_more_problems_of_a_fresh_step_are_the_next_ones_of_its_seed():
    source = ProblemSource(SMALL, seed=7)
    first = source.draw(3, 4)
    more = source.draw(3, 5, beside=first)
    assert ids(first + more) == ids(SMALL.problems((7, "train", 3), 9))
    assert not set(ids(source.draw(4, 4))) >= set(ids(first))


def test_a_pool_is_drawn_evenly_and_holds_no_problem_of_another_split():
    source, seen = ProblemSource(SMALL, seed=0, pool=20), Counter()
    held_out = {p.id for seed in range(30) for s in ("test", "tune") for p in SMALL.problems(seed, 6, split=s)}
    for step in range(600):
        first = source.draw(step, 3)
        both = first + source.draw(step, 2, beside=first)
        assert len(set(ids(both))) == 5
        seen.update(ids(both))
    assert len(seen) == 20
    assert not held_out & set(seen)
    # Each is drawn 150 times on average, with a standard deviation of √(600 · ¼ · ¾) = 10.6.
    assert max(abs(n - 150) for n in seen.values()) < 4 * 10.6


def test_another_seed_has_another_pool_and_another_order():
    pools = [set(ids(ProblemSource(SMALL, seed=seed, pool=20).draw(1, 20))) for seed in (0, 1)]
    assert pools[0] != pools[1]
    one, same = (ids(ProblemSource(SMALL, seed=0, pool=20).draw(1, 20)) for _ in range(2))
    assert one == same
    assert one != ids(ProblemSource(SMALL, seed=0, pool=20).draw(2, 20))


def test_a_curriculum_puts_off_what_is_always_wrong_and_brings_it_back():
    source = ProblemSource(SMALL, seed=0, pool=12, curriculum="curriculum:prior=2,draws=4,defer_for=3")
    first = source.draw(1, 6)
    hard, easy = ids(first)[:3], set(ids(first)[3:])
    source.observe(verdicts(first, easy))  # half of all are right: the easy have (2 · ½ + 4) / (2 + 4) = 5/6
    assert source.metrics() == {
        "curriculum/new": 6,
        "curriculum/deferred": 3,
        "curriculum/easy": 3,
        "curriculum/middle": 0,
    }
    for step in (2, 3, 4):  # away for three steps: drawn again before that only where there are too few others
        assert not set(hard) & set(ids(source.draw(step, 6)))
    assert set(hard) & {name for step in range(5, 9) for name in ids(source.draw(step, 6))}


def test_problems_that_refill_a_step_are_others_and_count_as_the_same_batch():
    source = ProblemSource(SMALL, seed=0, pool=12, curriculum="curriculum")
    first = source.draw(1, 5)
    more = source.draw(1, 4, beside=first)
    rest = source.draw(1, 3, beside=first + more)
    assert len(set(ids(first + more + rest))) == 12
    assert source.curriculum.state()["step"] == 1
    plain = ProblemSource(SMALL, seed=0, pool=12, curriculum="curriculum")
    assert ids(plain.draw(1, 5)) == ids(first)


@pytest.mark.parametrize("curriculum", [None, "curriculum:draws=4,defer_for=2"])
def test_a_restored_source_draws_what_the_first_would_have_drawn(curriculum):
    def made():
        return ProblemSource(SMALL, seed=3, pool=15, curriculum=curriculum)

    first, later = made(), made()
    for step in range(1, 9):
        drawn = first.draw(step, 5)
        first.observe(verdicts(drawn, set(ids(drawn)[: step % 4])))
        if step == 5:
            later.restore(json.loads(json.dumps(first.state())))
        if step > 5:
            again = later.draw(step, 5)
            assert ids(again) == ids(drawn)
            later.observe(verdicts(again, set(ids(again)[: step % 4])))
    assert first.state() == later.state()


def test_a_world_with_too_few_problems_is_refused_before_a_run_begins(tmp_path, model):
    changes = {"task": "countdown:numbers=2,largest=4,operators=+", "method": {"filters": ("dynamic_sampling",)}}
    with pytest.raises(UsageError, match="60 different problems were asked for, and this task has"):
        train(config_of(tmp_path / "run", model, sampling={"refills": 9}, **changes))
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- a run with a curriculum


def test_a_curriculum_counts_the_raw_verdicts_of_every_step_once(run):
    folder = run(
        method={"curriculum": "curriculum:half_life=1e12,defer_for=1,defer_most=1", "rewards": ("brier",)},
        sampling={"pool": 9, "prompts": 4},
    )
    state = load_checkpoint(folder).state["problems"]["curriculum"]
    rows = [row for row in read_rollouts(folder) if row["split"] == "train"]
    right, tried = Counter(), Counter()
    for row in rows:
        right[row["prompt_id"]] += row["correct"]
        tried[row["prompt_id"]] += 1
    assert set(state["prompt_ids"]) == set(ids(find_task(TASK).problems((0, "pool"), 9)))
    assert dict(zip(state["prompt_ids"], state["tried"], strict=True)) == pytest.approx(
        {name: tried[name] for name in state["prompt_ids"]}
    )
    assert dict(zip(state["prompt_ids"], state["right"], strict=True)) == pytest.approx(
        {name: right[name] for name in state["prompt_ids"]}
    )
    assert max(tried.values()) > 6 < len(tried)
    for line in read_metrics(folder)[1:]:
        assert sum(value for key, value in line.items() if key.startswith("curriculum/")) == 9


def test_a_pool_alone_draws_from_the_same_problems(run):
    sampling = {"pool": 9, "prompts": 4}
    plain, chosen = run(sampling=sampling), run(sampling=sampling, method={"curriculum": "curriculum"})
    pools = [{row["prompt_id"] for row in read_rollouts(f) if row["split"] == "train"} for f in (plain, chosen)]
    assert pools[0] | pools[1] <= set(ids(find_task(TASK).problems((0, "pool"), 9)))
    assert load_checkpoint(plain).state["problems"] == {"curriculum": None}
    assert not any(key.startswith("curriculum/") for line in read_metrics(plain) for key in line)


# ---------------------------------------------------------------- refills


def groups_of(folder, step):
    """Problems of a training step in the order in which they were drawn, with their verdicts."""
    groups: dict[str, list[bool]] = {}
    for row in read_rollouts(folder):
        if row["split"] == "train" and row["step"] == step:
            groups.setdefault(row["group_id"], []).append(row["correct"])
    return groups


def is_mixed(verdicts):
    return any(verdicts) and not all(verdicts)


@pytest.mark.parametrize(("refills", "most"), [(1, None), (4, None), (4, 12)])
def test_problems_without_signal_are_replaced_round_by_round(run, refills, most):
    filters = {"filters": ("dynamic_sampling",)}
    folder = run(method=filters, sampling={"refills": refills, "most_prompts": most})
    plain = run(method=filters)
    drawn = []
    for step, line in enumerate(read_metrics(folder)[1:], start=1):
        groups = groups_of(folder, step)
        verdicts, n = list(groups.values()), 6
        for _ in range(refills):
            lacking = 6 - sum(map(is_mixed, verdicts[:n]))
            n += min(lacking, (most or 99) - n)
        assert len(groups) == n
        assert sum(map(is_mixed, verdicts)) <= 6
        assert all(len(found) == 6 for found in verdicts)
        assert line["rollouts"] == 6 * n
        left_out = 6 * sum(not is_mixed(found) for found in verdicts)
        assert line["dropped/all_wrong"] + line["dropped/all_right"] == left_out
        assert line["accuracy"] == pytest.approx(np.mean(verdicts))
        drawn.append(n)
    assert len(set(drawn)) > 1
    assert max(drawn) <= (most or 6 * (1 + refills))
    # Before anything was learnt the first problems and their completions are those of a run that is never refilled.
    assert list(groups_of(folder, 1).items())[:6] == list(groups_of(plain, 1).items())
    assert not any("rollouts" in line for line in read_metrics(plain))


def test_the_problems_of_refilled_steps_are_dealt_evenly_over_the_updates(run):
    folder = run(
        method={"filters": ("dynamic_sampling",)},
        sampling={"refills": 3},
        learning={"steps": 8, "updates": 3},
    )
    mixed = [sum(map(is_mixed, groups_of(folder, step).values())) for step in range(1, 9)]
    newest = sorted((folder / "checkpoints").glob("step=*"))[-1]
    # Dealt among the mixed alone, no update is without one while there are as many of them as updates.
    assert int(load_file(newest / "optimiser.safetensors")["0.step"]) == sum(min(3, n) for n in mixed)
    assert min(mixed) > 0


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"method": {"curriculum": "curriculum"}},
            "method.curriculum chooses from a pool of problems: set sampling.pool",
        ),
        ({"method": {"curriculum": "band"}}, "band belongs under controllers, not curriculum"),
        ({"sampling": {"pool": 5}}, "sampling.pool 5 is too small for a step, which may pose 6 problems"),
        (
            {"sampling": {"pool": 11, "refills": 1}, "method": {"filters": ("dynamic_sampling",)}},
            "sampling.pool 11 is too small for a step, which may pose 12 problems",
        ),
        ({"sampling": {"refills": 1}}, "name one in method.filters, say dynamic_sampling"),
        ({"sampling": {"most_prompts": 9}}, "sampling.most_prompts 9 limits refills: set sampling.refills"),
        (
            {"sampling": {"refills": 1, "most_prompts": 5}, "method": {"filters": ("dynamic_sampling",)}},
            "sampling.most_prompts 5 limits refills: .* at least sampling.prompts 6",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, changes, words):
    with pytest.raises(ValidationError, match=words):
        config_of(tmp_path / "run", tmp_path / "none", **changes)
