"""The trainer against a slow one: determinism, updates, methods, controllers and evaluation."""

from __future__ import annotations

import json
import math
from itertools import combinations, permutations
from statistics import mean

import numpy as np
import pytest
import torch
from slow_training import CAREFUL, Slow, assert_near, entropy_of, grpo_advantages, newest, ppo, step_rows
from tiny_training import TASK, Unjudged, config_of, read_metrics, read_rollouts

from equipoise.base import Grade
from equipoise.catalogue.table import recipes
from equipoise.errors import UsageError
from equipoise.models.checkpoint import load_gpt
from equipoise.objectives import covariance
from equipoise.rollouts.folder import open_folder
from equipoise.tasks.table import find_task
from equipoise.training.evaluate import evaluate
from equipoise.training.loop import train
from equipoise.training.recipe import Evaluation, recipe


def shaper_state(folder):
    return json.loads((sorted((folder / "checkpoints").glob("step=*"))[-1] / "state.json").read_text())["shaper"]


# ---------------------------------------------------------------- determinism


def test_equal_seeds_are_equal_runs_and_another_seed_is_another(run):
    method = {"bonuses": ("ucb_mean",), "bonus_on_answer": True, "surrogate": "clip_cov:share=0.1,low=0,high=9"}
    settings = {"learning": {"updates": 2, "rows": 7}, "method": method}
    one, same, other = run(**settings), run(**settings), run(**settings, seed=1)
    assert read_metrics(one) == read_metrics(same)
    assert read_rollouts(one) == read_rollouts(same)
    for name in ("model", "optimiser"):
        assert_near(newest(one, name), newest(same, name), 0)
    assert read_metrics(one)[1:] != read_metrics(other)[1:]
    assert (
        read_metrics(one)[0] == read_metrics(other)[0]
    )  # every run is evaluated on the same problems, with the same draws
    assert not {r["prompt"] for r in read_rollouts(one) if r["step"] == 1 and r["split"] == "train"} & {
        r["prompt"] for r in read_rollouts(other) if r["step"] == 1 and r["split"] == "train"
    }


# ---------------------------------------------------------------- a slow trainer


def with_bonus(row, t, logp_V, ref_V, advantage):
    return ppo(row, t, logp_V, ref_V, advantage) - 0.05 * entropy_of(logp_V)


def with_exact_kl(row, t, logp_V, ref_V, advantage):
    kl = sum(p.exp() * (p - q) for p, q in zip(logp_V, ref_V, strict=True) if p > -math.inf)
    return ppo(row, t, logp_V, ref_V, advantage) + 0.5 * kl


def with_k3(row, t, logp_V, ref_V, advantage):
    d = logp_V[row["token_ids"][t]] - ref_V[row["token_ids"][t]]
    return ppo(row, t, logp_V, ref_V, advantage) + 0.5 * ((-d).exp() - 1 + d)


@pytest.mark.parametrize(
    ("method", "term"),
    [
        ({}, ppo),
        ({"regularisers": ("entropy_bonus:coef=0.05",)}, with_bonus),
        ({"regularisers": ("kl:coef=0.5,kind=exact",)}, with_exact_kl),
        ({"regularisers": ("kl:coef=0.5",)}, with_k3),
    ],
    ids=["clip", "entropy_bonus", "exact_kl", "k3"],
)
def test_two_steps_are_those_of_a_slow_trainer(run, model, method, term):
    folder = run(method=method, learning=CAREFUL, save_every=1)
    slow, metrics = Slow(model), read_metrics(folder)
    for step, lr in ((1, 0.5e-4), (2, 1e-4)):
        rows = step_rows(folder, step)
        advantages = grpo_advantages(rows)
        assert any(advantages)
        assert [row["advantage"] for row in rows] == pytest.approx(advantages, rel=1e-5)
        loss, norm = slow.update(rows, advantages, term, lr=lr)
        assert norm > slow.clip_norm
        assert metrics[step]["loss"] == pytest.approx(loss, abs=1e-6)
        assert metrics[step]["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert_near(newest(folder), slow.policy.state_dict(), 1e-6)
    # Adam's steps hardly feel the size of a gradient; its moments do.
    assert_near(newest(folder, "optimiser"), slow.moments(), 1e-6)
    assert (newest(folder)["embed.weight"] - slow.base.embed.weight).abs().max() > 5e-5


def test_filtered_completions_are_no_part_of_the_loss_but_of_the_baseline(run, model):
    folder = run(
        method={"filters": ("mask_truncated",)},
        sampling={"prompts": 8, "samples": 8, "max_tokens": 6},
        learning=CAREFUL | {"steps": 1},
    )
    rows = step_rows(folder, 1)
    cut = [row["finish_reason"] == "length" for row in rows]
    advantages = [None if out else a for out, a in zip(cut, grpo_advantages(rows), strict=True)]
    assert any(cut)
    assert any(advantages)
    slow, metrics = Slow(model), read_metrics(folder)[1]
    loss, norm = slow.update(rows, advantages, ppo, lr=0.5e-4)
    assert metrics["dropped/truncated"] == sum(cut)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert_near(newest(folder), slow.policy.state_dict(), 1e-6)


def test_updates_of_a_step_take_every_problem_once(run, model):
    settings = {"sampling": {"prompts": 3, "samples": 8}, "learning": CAREFUL | {"steps": 1, "updates": 3}, "seed": 2}
    folder = run(**settings)
    rows = step_rows(folder, 1)
    advantages, groups = grpo_advantages(rows), list(dict.fromkeys(row["group_id"] for row in rows))
    assert any(advantages)
    found, near = newest(folder, "optimiser"), []
    for order in permutations(groups):
        slow = Slow(model)
        for group in order:
            part = [(row, a) for row, a in zip(rows, advantages, strict=True) if row["group_id"] == group]
            slow.update(*map(list, zip(*part, strict=True)), ppo, lr=0.5e-4)
        near.append(
            all(torch.allclose(found[name], moment, rtol=0, atol=1e-6) for name, moment in slow.moments().items())
        )
    assert any(near)
    assert not all(near)


@pytest.mark.parametrize(
    "method",
    [
        {"regularisers": ("kl:coef=0.5,kind=exact",)},
        {"weights": ("forking_step:share=0.3",), "regularisers": ("kl:coef=0.5",)},
        {"surrogate": "clip_cov_step:share=0.2,low=0.01,high=9"},
        {"surrogate": "kl_cov_step:share=0.2", "filters": ("mask_truncated",)},
        {"reduction": "sequence_mean", "controllers": ("entropy_budget:target=3",)},
    ],
    ids=["kl", "forking_step", "clip_cov_step", "kl_cov_step", "entropy_budget"],
)
def test_rows_of_a_pass_change_nothing(run, method):
    whole = None
    for rows in (512, 5):
        folder = run(
            method=method,
            learning=CAREFUL | {"lr": 2e-5, "updates": 2, "rows": rows},
            sampling={"samples": 8, "max_tokens": 7},
        )
        found = newest(folder) | newest(folder, "optimiser")
        whole = whole or found
        assert_near(found, whole, 1e-6)


# ---------------------------------------------------------------- methods and controllers


def test_forking_moves_the_tokens_of_highest_entropy_alone(run, model):
    folder = run(method={"weights": ("forking_step:share=0.3",)}, learning=CAREFUL | {"steps": 1})
    rows = step_rows(folder, 1)
    slow = Slow(model)
    with torch.no_grad():
        entropies = [[float(entropy_of(logp)) for logp in slow.log_softmax(slow.policy, row)] for row in rows]
    # The completions' own arrays are float16, so near the quantile they would decide otherwise.
    least = np.quantile([h for row in entropies for h in row], 0.7)
    place = {id(row): number for number, row in enumerate(rows)}

    def forking(row, t, logp_V, ref_V, advantage):
        return ppo(row, t, logp_V, ref_V, advantage) * (entropies[place[id(row)]][t] >= least)

    slow.update(rows, grpo_advantages(rows), forking, lr=0.5e-4)
    assert_near(newest(folder, "optimiser"), slow.moments(), 1e-6)


def test_clip_cov_draws_other_tokens_in_every_update(run, monkeypatch):
    seeds, draw = [], covariance.draw_in_band

    def spy(*tensors, seed, **settings):
        seeds.append(seed)
        return draw(*tensors, seed=seed, **settings)

    monkeypatch.setattr(covariance, "draw_in_band", spy)
    folder = run(
        method={"surrogate": "clip_cov:share=0.2,low=0.01,high=9"}, learning={"updates": 3, "rows": 5, "steps": 2}
    )
    assert len(set(seeds)) == 6
    assert len(seeds) == 2 * 3 * 3  # 12 completions of an update, 5 to a pass
    assert not any(key.endswith("seed") for line in read_metrics(folder) for key in line)


def test_on_policy_a_penalty_on_the_log_ratio_is_exactly_nothing(run):
    # Sampler and trainer round differently: a log-ratio of 1e-7 between them must not decide the sign of a gradient.
    penalised = run(method={"surrogate": "kl_cov:share=1,coef=5"}, learning={"steps": 3})
    plain = run(method={"surrogate": "clip"}, learning={"steps": 3})
    assert_near(newest(penalised), newest(plain), 0)
    assert 0 < read_metrics(penalised)[1]["mismatch"] < 1e-5


def test_a_band_moves_the_bonus_in_the_log_and_in_the_loss(run):
    controllers = ("band:low=5,high=6,step=0.001,max=0.0025",)
    banded = run(method={"controllers": controllers}, learning={"steps": 3})
    coefs = [line["entropy_bonus.coef"] for line in read_metrics(banded)[1:]]
    assert coefs == pytest.approx([0.001, 0.002, 0.0025])
    named = run(method={"controllers": controllers, "regularisers": ("entropy_bonus",)}, learning={"steps": 3})
    assert_near(newest(named), newest(banded), 0)
    plain = run(learning={"steps": 3})
    first, other = read_metrics(banded)[1], read_metrics(plain)[1]
    assert first["entropy"] == other["entropy"]
    assert first["loss"] == pytest.approx(other["loss"] - 0.001 * first["entropy"], abs=1e-6)


def test_an_adaptive_clip_follows_the_logged_entropy(run):
    folder = run(method={"controllers": ("adaptive_clip:start=0.2,max=0.3",)}, learning={"updates": 2})
    lines = read_metrics(folder)[1:]
    bound, expected = 0.2, []
    for line in lines:
        if line["entropy"] < lines[0]["entropy"]:
            bound = min(bound * 2, 0.3)
        elif line["entropy"] > lines[0]["entropy"]:
            bound = max(bound / 2, 0.05)
        expected.append(bound)
    assert [line["clip_high"] for line in lines] == pytest.approx(expected)
    assert len(set(expected)) > 1


@pytest.mark.parametrize(
    "spelt", ["entropy_budget", "entropy-budget", "equipoise.shaping.entropy_budget:EntropyBudget"]
)
def test_far_below_its_target_a_budget_lets_only_earning_tokens_move(run, model, spelt):
    folder = run(method={"controllers": (f"{spelt}:target=9",)}, learning=CAREFUL)
    assert [line["entropy_budget.weight"] for line in read_metrics(folder)[1:]] == [1.0, 0.0]

    def earning(row, t, logp_V, ref_V, advantage):
        logp_V = logp_V.detach().double()
        p, h = logp_V.exp(), float(entropy_of(logp_V))
        own = p * (torch.where(p > 0, logp_V, 0.0) + h)
        change = -advantage * (own[row["token_ids"][t]] - (p * own).sum())
        return float(change >= 0)

    def weighted(row, t, logp_V, ref_V, advantage):
        return ppo(row, t, logp_V, ref_V, advantage) * earning(row, t, logp_V, ref_V, advantage)

    slow = Slow(model)
    rows = step_rows(folder, 1)
    slow.update(rows, grpo_advantages(rows), ppo, lr=0.5e-4)
    rows = step_rows(folder, 2)
    loss, norm = slow.update(rows, grpo_advantages(rows), weighted, lr=1e-4)
    line = read_metrics(folder)[2]
    assert (line["loss"], line["grad_norm"]) == (pytest.approx(loss, abs=1e-6), pytest.approx(norm, rel=1e-3))
    assert_near(newest(folder, "optimiser"), slow.moments(), 1e-6)


def test_a_controller_without_its_setting_is_refused_before_anything_is_written(tmp_path, model):
    method = {"surrogate": "kl_cov", "controllers": ("adaptive_clip",)}
    with pytest.raises(UsageError, match="adaptive_clip moves clip_high, and no part of this method takes it"):
        train(config_of(tmp_path / "run", model, method=method))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", [found.name for found in recipes()])
def test_every_recipe_of_the_catalogue_trains(tmp_path, model, name):
    config = config_of(tmp_path / "run", model, method=recipe(name).model_dump(), learning={"steps": 2, "updates": 2})
    train(config)
    assert read_metrics(tmp_path / "run")[2]["loss"] is not None


def test_updates_whose_problems_are_all_filtered_are_passed_over(run):
    folder = run(
        method={"filters": ("dynamic_sampling",), "controllers": ("band:low=5,high=6",)},
        learning={"updates": 6, "steps": 8},
    )
    lines = read_metrics(folder)[1:]
    n_updates = int(newest(folder, "optimiser")["0.step"])
    mixed = [round(6 * (1 - line["all_wrong"] - line["all_right"])) for line in lines]
    assert n_updates == sum(mixed)
    assert 0 < n_updates < 48
    assert all("entropy_bonus.coef" in line for line in lines)
    assert [("loss" in line) for line in lines] == [n > 0 for n in mixed]


def test_a_gradient_that_is_not_finite_ends_the_run_before_a_weight_is_saved(tmp_path, model):
    method = {"regularisers": ("entropy_bonus:coef=1e39",)}
    with pytest.raises(FloatingPointError, match="the gradient of step 1 is not finite"):
        train(config_of(tmp_path / "run", model, method=method, save_every=1))
    assert not (tmp_path / "run" / "checkpoints").exists()


# ---------------------------------------------------------------- evaluation


def held_out(folder, step):
    groups = {}
    for row in read_rollouts(folder):
        if row["split"] == "test" and row["step"] == step:
            groups.setdefault(row["prompt_id"], []).append(row)
    return list(groups.values())


@pytest.mark.parametrize("step", [0, 6])
def test_what_is_logged_of_held_out_problems_is_counted_from_their_completions(run, model, step):
    folder = run(evaluation={"problems": 12, "samples": 6})
    groups, line = held_out(folder, step), read_metrics(folder)[step]
    assert [len(rows) for rows in groups] == [6] * 12
    for k in (1, 2, 4, 6):
        shares = [mean(float(any(s)) for s in combinations([r["correct"] for r in rows], k)) for rows in groups]
        assert line[f"eval/pass@{k}"] == pytest.approx(mean(shares))
    distinct = [(any(r["correct"] for r in rows), len({r["answer"] for r in rows} - {None})) for rows in groups]
    assert line["eval/distinct_solved"] == pytest.approx(mean(n for solved, n in distinct if solved))
    assert line["eval/distinct_unsolved"] == pytest.approx(mean(n for solved, n in distinct if not solved))
    entropies = [h for rows in groups for row in rows for h in row["entropies"]]
    assert line["eval/entropy"] == pytest.approx(mean(entropies), rel=1e-3)
    slow = Slow(model)
    if step:
        slow.policy.load_state_dict(newest(folder))
    kls = []
    with torch.no_grad():
        for row in (row for rows in groups for row in rows):
            p_TV, q_TV = (slow.log_softmax(m, row)[:, 1:].double() for m in (slow.policy, slow.base))
            kls += (p_TV.exp() * (p_TV - q_TV)).sum(-1).tolist()
    assert line["eval/kl_to_base"] == pytest.approx(mean(kls), abs=1e-5)


def test_evaluation_moves_nothing(run):
    method = {
        "bonuses": ("ucb_mean",),
        "bonus_on_answer": True,
        "controllers": ("band", "adaptive_clip", "entropy_budget"),
    }
    often, rarely = (run(method=method, evaluation={"every": every}) for every in (1, 100))
    for name in ("model", "optimiser"):
        assert_near(newest(often, name), newest(rarely, name), 0)
    assert shaper_state(often) == shaper_state(rarely)
    trained, tested = ({r["prompt_id"] for r in read_rollouts(often) if r["split"] == s} for s in ("train", "test"))
    assert shaper_state(often)["counter"]["counts"].keys() <= trained
    assert not trained & tested


def test_training_and_held_out_problems_never_meet_in_a_small_world(run):
    # Three numbers up to 5 make few problems: without splits nearly all held-out ones would be trained on.
    small = {
        "task": "countdown:numbers=3,largest=5,operators=+-",
        "learning": {"steps": 12},
        "sampling": {"prompts": 16},
    }
    folder = run(**small)
    seen = {"train": set(), "test": set()}
    for row in read_rollouts(folder):
        numbers, target = row["prompt"].rstrip(">").split("=")
        seen[row["split"]].add((*sorted(numbers.split(",")), target))
    assert len(seen["train"]) > 50
    assert len(seen["test"]) == 6
    assert not seen["train"] & seen["test"]


def test_every_temperature_is_logged_and_recorded_apart(run):
    folder = run(evaluation={"temperatures": (1.0, 0.3)}, learning={"steps": 1})
    line = read_metrics(folder)[0]
    assert line["eval@0.3/entropy"] < line["eval/entropy"]
    rows = [row for row in read_rollouts(folder) if row["split"] == "test" and row["step"] == 0]
    assert sorted(
        {(row["temperature"], sum(r["temperature"] == row["temperature"] for r in rows)) for row in rows}
    ) == [
        (0.3, 36),
        (1.0, 36),
    ]


def test_recorded_tokens_spell_the_recorded_completions(run):
    """vocab.json names every token of the record: joined, they are the text."""
    found = open_folder(run(learning={"steps": 1}))
    vocab = found.vocab()
    rows = [row for rollouts in found.rollouts(["completion", "token_ids"]) for row in rollouts.rows()]
    assert len(rows) > 36
    assert all("".join(vocab[token] for token in row["token_ids"]) == row["completion"] for row in rows)


class FirstUnjudged:
    """Countdown with a checker that runs out of time on the first completion that it is shown."""

    env, late, problems = "first_unjudged", None, Unjudged.problems

    def grade(self, problem, completion):
        shown = (problem.id, completion.text)
        self.late = self.late or shown
        graded = find_task(TASK).grade(problem, completion)
        return Grade(graded.answer, "timeout", None) if shown == self.late else graded


def test_an_unjudged_completion_is_no_wrong_one(model):
    policy, tokens = load_gpt(model)
    how = Evaluation(problems=20, samples=4)
    [found] = evaluate(policy, tokens, FirstUnjudged(), how, max_tokens=9)
    verdicts = found.batch.groups.correct_PG
    judged = [[v for v in row if not math.isnan(v)] for row in verdicts.tolist()]
    assert [len(row) == 4 for row in judged] == [False] + [True] * 19  # a text that was drawn twice is late twice
    assert found.value("pass@4") == pytest.approx(mean(max(row) for row in judged if len(row) == 4))
    assert found.value("pass@1") == pytest.approx(mean(mean(row) for row in judged if row))
    [nothing] = evaluate(policy, tokens, Unjudged(every=1), how, max_tokens=9)
    assert nothing.value("pass@1") is None


def test_a_run_whose_checker_fails_says_so_and_goes_on(tmp_path, model):
    said = []
    config = config_of(tmp_path / "run", model, task="tiny_training:Unjudged:every=1", learning={"steps": 1})
    train(config, say=said.append)
    assert "right –" in said[-1]
    assert "pass@1 –" in said[-1]
    line = read_metrics(tmp_path / "run")[1]
    assert (line["accuracy"], line["reward"], line["dropped/unscored"]) == (None, None, 36)


def test_the_task_of_these_tests_leaves_something_to_learn(run):
    line = read_metrics(run(evaluation={"problems": 32}, learning={"steps": 0}))[0]
    assert 0.02 < line["eval/pass@1"] < line["eval/pass@6"] < 0.98
