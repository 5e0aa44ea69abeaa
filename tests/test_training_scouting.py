"""Scouting: a few completions of many problems, the rest of those that showed the most to learn, and a batch as any other."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from slow_training import CAREFUL, Slow, assert_near, grpo_advantages, newest, ppo, step_rows
from tiny_training import TASK, TOKENS, Unjudged, config_of, read_metrics, read_rollouts

from equipoise.errors import UsageError
from equipoise.lab.study_config import StudyConfig
from equipoise.lab.study_run import base_job
from equipoise.models.checkpoint import load_gpt
from equipoise.shaping.scouting import Scouting
from equipoise.tasks.table import find_task
from equipoise.training.checkpoints import complete_checkpoints, load_checkpoint
from equipoise.training.collect import Batch, collect
from equipoise.training.loop import train
from equipoise.training.scouting import go_on, join_completions, take_problems

NAN = np.nan
SCOUTING = {"method": {"allocation": "scouting:scouts=15,first=3"}, "sampling": {"prompts": 4, "samples": 5}}


# ---------------------------------------------------------------- the choice

# Place → verdicts of the first completions, with what they make of a problem.
TABLE = np.array(
    [
        [1, 1, 1, 1],  # 0 all right
        [0, 0, 0, 0],  # 1 none right
        [1, 1, 0, 1],  # 2 mixed, ¾
        [0, 1, 0, 0],  # 3 mixed, ¼
        [NAN, NAN, NAN, NAN],  # 4 no verdict
        [1, 0, 0, 1],  # 5 mixed, ½
        [0, NAN, 0, 0],  # 6 none right of three
        [NAN, 0, 1, 0],  # 7 mixed, ⅓
        [1, NAN, 1, 1],  # 8 all right of three
    ]
)


def choose(n, correct_PG=TABLE, seed=0):
    correct_PG = np.asarray(correct_PG, dtype=float)
    keep_PG = np.ones(correct_PG.shape, dtype=bool)
    return (
        Scouting(scouts=len(correct_PG), first=4).choose(n, correct_PG=correct_PG, keep_PG=keep_PG, seed=seed).tolist()
    )


@pytest.mark.parametrize(
    ("n", "chosen"),
    [
        (0, []),
        (1, [3]),
        (2, [3, 7]),
        (3, [3, 5, 7]),
        (4, [2, 3, 5, 7]),
        (6, [1, 2, 3, 5, 6, 7]),
        (8, [0, 1, 2, 3, 5, 6, 7, 8]),
        (9, list(range(9))),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_choice_worked_by_hand(n, chosen, seed):
    assert choose(n, seed=seed) == chosen


def test_ties_fall_by_the_seed_and_evenly():
    seen = Counter(place for seed in range(2000) for place in choose(2, [[1, 0, 0, 0]] * 5, seed))
    # Each of the five is one of the two with chance 2/5: 800 times, with a standard deviation of √(2000 · 0.24) = 21.9.
    assert max(abs(seen[place] - 800) for place in range(5)) < 4 * 21.9
    assert {tuple(choose(1, seed=seed)) for seed in range(50)} == {(3,)}
    assert len({tuple(choose(5, seed=seed)) for seed in range(50)}) == 2  # the fifth is 1 or 6
    assert choose(5, seed=7) == choose(5, seed=7)


def test_cells_without_a_completion_are_not_read():
    keep_PG = np.array([[True, True, False], [True, True, True]])
    correct_PG = np.array([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    assert Scouting(scouts=2, first=3).choose(1, correct_PG=correct_PG, keep_PG=keep_PG, seed=0).tolist() == [1]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: choose(10), "10 problems were to be chosen of 9: scout as many at least"),
        (lambda: choose(1, [[0.5, 1.0]]), "correct_PG must hold 0, 1 or nan, found 0.5"),
        (lambda: Scouting(scouts=0, first=4), "scouts of scouting is 0: use a whole number, 1 or more"),
        (lambda: Scouting(scouts=9, first=1.5), "first of scouting is 1.5: use a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_chosen_is_told(made, words):
    with pytest.raises(UsageError, match=words):
        made()


# ---------------------------------------------------------------- the batch

PROBLEMS = find_task(TASK).problems("scouted", 7)


@pytest.fixture(scope="module")
def draw(model):
    policy = load_gpt(model)[0]

    def draw(problems, samples, *seed, task=None) -> Batch:
        how = {"samples": samples, "temperature": 1.0, "max_tokens": 9}
        return collect(policy, TOKENS, task or find_task(TASK), list(problems), seed=seed, **how)

    return draw


def row_of(batch: Batch, row: int) -> dict:
    """One completion and all that the batch says of it, without padding."""
    samples, each = batch.samples, batch.answers_PG.shape[1]
    place, sample = divmod(row, each)
    prompt = int(samples.prompt_B[row])
    values = {
        name: getattr(samples, name)[row][samples.mask_BT[row]].tolist() for name in ("ids_BT", "logp_BT", "entropy_BT")
    }
    groups = {
        name: getattr(batch.groups, name)[place, sample]
        for name in ("keep_PG", "reward_PG", "correct_PG", "n_tokens_PG", "truncated_PG")
    }
    return {
        "problem": batch.problems[place].id,
        "group": batch.groups.prompt_ids_P[place],
        "prompt": samples.prompt_ids_PL[prompt][samples.prompt_mask_PL[prompt]].tolist(),
        "finish": samples.finish[row],
        "completion": batch.completions[row],
        "grade": batch.grades[row],
        "answer": batch.answers_PG[place, sample],
        **values,
        **groups,
    }


def same(found, expected):
    pd.testing.assert_series_equal(pd.Series(found), pd.Series(expected))


def test_a_joined_batch_holds_row_by_row_what_was_drawn(draw):
    first, more = draw(PROBLEMS, 2, "a"), draw(PROBLEMS, 3, "b")
    joined = join_completions(first, more, pad_token=TOKENS.pad)
    assert joined.answers_PG.shape == (7, 5)
    for place in range(7):
        for sample in range(5):
            expected = row_of(first, 2 * place + sample) if sample < 2 else row_of(more, 3 * place + sample - 2)
            same(row_of(joined, 5 * place + sample), expected)
    assert len(joined.samples.prompt_ids_PL) == 7
    assert joined.samples.prompt_B.tolist() == [row // 5 for row in range(35)]
    assert joined.groups.row_PG.ravel().tolist() == list(range(35))
    assert not joined.samples.logp_BT[~joined.samples.mask_BT].any()
    # Equal answers have one code, whichever draw they come from.
    answers, codes = joined.answers_PG.ravel(), joined.groups.answer_PG.ravel()
    for one, of_one in zip(answers, codes, strict=True):
        assert [code == of_one for code in codes] == [other == one for other in answers]


def test_problems_are_taken_with_their_completions(draw):
    whole = draw(PROBLEMS, 3, "a")
    some, alone = take_problems(whole, [1, 4, 6]), draw([PROBLEMS[p] for p in (1, 4, 6)], 3, "a")
    for row in range(9):
        same(row_of(some, row), row_of(whole, 3 * (1, 4, 6)[row // 3] + row % 3))
        assert row_of(some, row)["completion"].text == alone.completions[row].text
    assert len(some.samples.prompt_ids_PL) == 3


def test_scouting_draws_the_rest_of_the_chosen_alone(draw):
    first, asked = draw(PROBLEMS, 3, "a"), []

    def draw_more(problems):
        asked.append([problem.id for problem in problems])
        return draw(problems, 2, "b")

    scouted = go_on(Scouting(scouts=7, first=3), first, prompts=3, seed=5, draw_more=draw_more, pad_token=TOKENS.pad)
    chosen = (
        Scouting(scouts=7, first=3)
        .choose(3, correct_PG=first.groups.correct_PG, keep_PG=first.groups.keep_PG, seed=5)
        .tolist()
    )
    assert asked == [[PROBLEMS[place].id for place in chosen]]
    assert scouted.first is first
    more = draw([PROBLEMS[place] for place in chosen], 2, "b")
    for at, place in enumerate(chosen):
        for sample in range(5):
            expected = row_of(first, 3 * place + sample) if sample < 3 else row_of(more, 2 * at + sample - 3)
            same(row_of(scouted.batch, 5 * at + sample), expected)
    assert [p.id for p in scouted.passed_over.problems] == [
        p.id for place, p in enumerate(PROBLEMS) if place not in chosen
    ]
    rates = [
        np.mean([first.grades[3 * place + sample].correct for sample in range(3)]) for place in range(len(PROBLEMS))
    ]
    assert scouted.metrics() == {
        "scouting/accuracy": pytest.approx(np.mean(rates)),
        "scouting/all_wrong": rates.count(0) / 7,
        "scouting/all_right": rates.count(1) / 7,
    }
    all_of_them = go_on(
        Scouting(scouts=7, first=3), first, prompts=7, seed=5, draw_more=lambda p: draw(p, 2, "b"), pad_token=TOKENS.pad
    )
    assert all_of_them.passed_over is None


def test_where_nothing_was_judged_nothing_is_measured(draw):
    first = draw(PROBLEMS, 2, "a", task=Unjudged())
    scouted = go_on(
        Scouting(scouts=7, first=2), first, prompts=3, seed=5, draw_more=lambda p: draw(p, 2, "b"), pad_token=TOKENS.pad
    )
    assert set(scouted.metrics().values()) == {None}


# ---------------------------------------------------------------- a run


def by_problem(rows):
    found: dict[str, list[dict]] = {}
    for row in rows:
        found.setdefault(row["group_id"], []).append(row)
    return found


@pytest.fixture(scope="module")
def scouted_run(tmp_path_factory, model):
    out = tmp_path_factory.mktemp("scouted") / "run"
    train(config_of(out, model, **SCOUTING))
    return out


def turn(group):
    """In which turn a problem is chosen: one of three first completions is right, two are, none, or all."""
    return (1, 2, 0, 3).index(sum(row["correct"] for row in group[:3]))


def test_a_step_goes_on_with_the_rarest_and_counts_all_that_it_drew(scouted_run):
    lines = read_metrics(scouted_run)
    source, turns = find_task(TASK), set()
    for step in range(1, 7):
        at_step = step_rows(scouted_run, step)
        learnt = by_problem(row for row in at_step if "advantage" in row)
        passed = by_problem(row for row in at_step if "advantage" not in row)
        assert {len(group) for group in learnt.values()} == {5}
        assert {len(group) for group in passed.values()} == {3}
        posed = [problem.id for problem in source.problems((0, "train", step), 15)]
        assert [name for name in posed if name in learnt] == list(learnt)
        assert [name for name in posed if name not in learnt] == list(passed)
        assert (len(learnt), len(passed)) == (4, 11)

        assert max(map(turn, learnt.values())) <= min(map(turn, passed.values()))
        line = lines[step]
        assert line["rollouts"] == len(at_step) == 15 * 3 + 4 * 2
        assert line["tokens"] == sum(row["n_tokens"] for row in at_step)
        assert line["accuracy"] == pytest.approx(np.mean([row["correct"] for g in learnt.values() for row in g]))
        firsts = [row["correct"] for group in (*learnt.values(), *passed.values()) for row in group[:3]]
        assert line["scouting/accuracy"] == pytest.approx(np.mean(firsts))
        turns |= {(turn(group), name in learnt) for name, group in {**learnt, **passed}.items()}
    assert {(0, True), (1, True), (1, False), (2, False)} <= turns


def test_what_is_learnt_is_what_a_slow_trainer_learns_of_the_chosen_groups(run, model):
    folder, slow = run(**SCOUTING, learning={**CAREFUL, "steps": 1}), Slow(model)
    rows = [row for row in step_rows(folder, 1) if "advantage" in row]
    assert len(rows) == 4 * 5
    advantages = grpo_advantages(rows)
    assert [row["advantage"] for row in rows] == pytest.approx(advantages, abs=1e-6)
    loss, norm = slow.update(rows, advantages, ppo, lr=1e-4 / 2)
    line = read_metrics(folder)[1]
    assert (line["loss"], line["grad_norm"]) == pytest.approx((loss, norm), abs=1e-5)
    assert_near(newest(folder), slow.policy.state_dict(), 2e-6)


def test_completions_are_those_of_a_plain_run_and_of_a_draw_of_their_own(tmp_path, model, scouted_run, draw):
    train(config_of(tmp_path / "run", model, sampling={"prompts": 15, "samples": 3}, learning={"steps": 1}))
    plain, found = by_problem(step_rows(tmp_path / "run", 1)), by_problem(step_rows(scouted_run, 1))
    for name, group in plain.items():
        assert [row["completion"] for row in found[name][:3]] == [row["completion"] for row in group]
    chosen = [name for name, group in found.items() if len(group) == 5]
    posed = {problem.id: problem for problem in find_task(TASK).problems((0, "train", 1), 15)}
    more = draw([posed[name] for name in chosen], 2, 0, "train", 1, "more")
    later = [row["completion"] for name in chosen for row in found[name][3:]]
    assert later == [completion.text for completion in more.completions]
    assert later != [row["completion"] for name in chosen for row in found[name][:2]]


@pytest.mark.parametrize("pool", [{}, {"pool": 20}, {"pool": 20, "curriculum": "curriculum:draws=4,defer_for=2"}])
def test_a_scouting_run_that_was_stopped_and_resumed_is_the_run_that_was_not(tmp_path, model, pool):
    class Stop(Exception):
        pass

    def stop(line):
        if line.startswith("step 4/"):
            raise Stop

    method = {**SCOUTING["method"], "curriculum": pool.get("curriculum"), "controllers": ("band:low=1,high=2",)}
    sampling = {**SCOUTING["sampling"], "pool": pool.get("pool")}
    whole, stopped = (
        config_of(tmp_path / name / "run", model, method=method, sampling=sampling, learning={"steps": 5})
        for name in ("whole", "stopped")
    )
    train(whole)
    with pytest.raises(Stop):
        train(stopped, say=stop)
    train(stopped, resume=True)
    assert read_metrics(stopped.out) == read_metrics(whole.out)
    assert read_rollouts(stopped.out) == read_rollouts(whole.out)
    found, expected = (complete_checkpoints(config.out)[-1][1] for config in (stopped, whole))
    for name in ("model.safetensors", "optimiser.safetensors", "state.json"):
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name


def test_a_curriculum_counts_the_first_completions_of_all_that_was_posed(run):
    folder = run(
        method={**SCOUTING["method"], "curriculum": "curriculum:half_life=1e12,defer_for=1,defer_most=1"},
        sampling={**SCOUTING["sampling"], "pool": 20},
    )
    state = load_checkpoint(folder).state["problems"]["curriculum"]
    right, tried = Counter(), Counter()
    for row in read_rollouts(folder):
        if row["split"] == "train" and row["sample_index"] < 3:
            right[row["group_id"]] += row["correct"]
            tried[row["group_id"]] += 1
    assert sum(tried.values()) == 6 * 15 * 3
    assert dict(zip(state["prompt_ids"], state["tried"], strict=True)) == pytest.approx(
        {name: tried[name] for name in state["prompt_ids"]}
    )
    assert dict(zip(state["prompt_ids"], state["right"], strict=True)) == pytest.approx(
        {name: right[name] for name in state["prompt_ids"]}
    )


def test_second_tries_and_filters_go_with_it(run):
    folder = run(
        method={
            **SCOUTING["method"],
            "filters": ("dynamic_sampling",),
            "demonstrations": ("critique_loop:tries=2", "rare_replay:rows=3", "base_anchor:problems=6,rows=3"),
        },
        sampling=SCOUTING["sampling"],
        learning={"updates": 2},
    )
    rows = read_rollouts(folder)
    for step, line in enumerate(read_metrics(folder)[1:], start=1):
        at_step = [row for row in rows if row["step"] == step and row["split"] != "test"]
        assert line["rollouts"] == len(at_step) + (6 * 5 if step == 1 else 0)
    assert any(row["split"] == "refined" for row in rows)


# ---------------------------------------------------------------- counted, and refused


def test_the_most_that_a_run_may_draw(tmp_path):
    plain = config_of(tmp_path, tmp_path, **SCOUTING)
    assert plain.most_rollouts == 6 * (15 * 3 + 4 * 2)
    tried = {**SCOUTING["method"], "demonstrations": ("critique_loop:tries=2", "base_anchor:problems=3")}
    both = config_of(tmp_path, tmp_path, method=tried, sampling=SCOUTING["sampling"])
    assert both.most_rollouts == 6 * (15 * 3 + 4 * 2 + 4 * 2) + 3 * 5


def test_finished_runs_of_before_there_was_any_still_count(tmp_path):
    plain = StudyConfig(out=tmp_path, arms={"grpo": {}})
    found = base_job(plain, tmp_path, plain.evaluation, "test").settings()["config"]
    assert "allocation" not in found["method"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"sampling": {"prompts": 16, "samples": 5}},
            "poses 15 problems, and sampling.prompts 16 are to be chosen of them",
        ),
        (
            {"sampling": {"prompts": 4, "samples": 3}},
            "draws 3 completions of every problem at first, .* set first below",
        ),
        ({"sampling": {"pool": 14}}, "sampling.pool 14 is too small for a step, which may pose 15 problems"),
        (
            {"sampling": {"refills": 1}, "method": {**SCOUTING["method"], "filters": ("dynamic_sampling",)}},
            "scouting:scouts=15,first=3 and sampling.refills 1 each choose the problems .* leave out one of them",
        ),
        ({"method": {"allocation": "scouting:scout=9"}}, "unknown setting of scouting 'scout': did you mean 'scouts'"),
        ({"method": {"allocation": "scouting:first=0"}}, "first of scouting is 0: use a whole number"),
        (
            {"method": {"allocation": "curriculum"}},
            "curriculum belongs under curriculum, not allocation",
        ),
        (
            {"method": {"filters": ("scouting",)}},
            "scouting belongs under allocation, not filters: its kind is allocation",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, changes, words):
    sections = {name: changes.get(name, SCOUTING[name]) for name in SCOUTING}
    with pytest.raises(ValidationError, match=words):
        config_of(tmp_path / "run", tmp_path / "none", **sections)


def test_a_world_with_too_few_problems_is_refused_before_a_run_begins(tmp_path, model):
    with pytest.raises(UsageError, match="99 different problems were asked for, and this task has"):
        train(
            config_of(
                tmp_path / "run",
                model,
                task="countdown:numbers=2,largest=4,operators=+",
                method={"allocation": "scouting:scouts=99,first=2"},
            )
        )
    assert not (tmp_path / "run").exists()
