"""Made-up runs: what is drawn follows the stated truth, and each knob does what it says and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from equipoise.lab import synthetic_tokens
from equipoise.lab.synthetic import (
    BUDGETS,
    Problems,
    World,
    at_budget,
    distinct_at,
    draw_problems,
    pass_at,
    progress,
    thinking,
    trained,
)
from equipoise.lab.synthetic_run import make_baseline, make_run, pick
from equipoise.rollouts.columns import BY_NAME, TOKEN_COLUMNS
from equipoise.rollouts.run import Run


def problems_of(base: list[list[float]], *, optimum: float = 1024.0) -> Problems:
    """Problems without any randomness of their own."""
    base_PA = np.asarray(base)
    n = len(base_PA)
    numbers = np.tile(np.arange(base_PA.shape[1]), (n, 1))
    return Problems(base_PA, np.zeros(base_PA.shape), np.ones(n), np.full(n, optimum), np.zeros(n), numbers)


def frame(run: Run) -> pd.DataFrame:
    return pd.DataFrame([row for batch in run.rollouts() for row in batch.rows()])


# --- the model by hand ------------------------------------------------------------------------------------------------


def test_learning_multiplies_the_odds_of_the_right_answer_and_keeps_the_wrong_ones_in_proportion():
    problems = problems_of([[0.2, 0.6, 0.2], [0.0, 0.75, 0.25]])
    found = trained(World(learning=1.0), problems, 1.0)
    odds = 0.25 * np.exp(1.5)
    assert found[0, 0] == pytest.approx(odds / (1 + odds))
    assert found[0, 1] / found[0, 2] == pytest.approx(3.0)
    np.testing.assert_allclose(found[1], [0.0, 0.75, 0.25], atol=1e-12)  # never solved: nothing to learn from


def test_collapse_draws_every_problem_to_its_mode_right_or_wrong():
    problems = problems_of([[0.5, 0.3, 0.2], [0.0, 0.75, 0.25]])
    found = trained(World(collapse=1.0), problems, 1.0)
    np.testing.assert_allclose(found[0], np.array([5**5, 3**5, 2**5]) / (5**5 + 3**5 + 2**5))
    np.testing.assert_allclose(found[1], [0.0, 243 / 244, 1 / 244], atol=1e-12)
    half = trained(World(collapse=0.5), problems, 1.0)  # β = √5
    assert half[1, 1] / half[1, 2] == pytest.approx(3 ** (5**0.5))


def test_without_an_effect_or_before_training_the_model_is_the_base():
    problems = draw_problems(World(), seed=3)
    np.testing.assert_allclose(trained(World(learning=1, collapse=1), problems, 0.0), problems.base_PA, atol=1e-12)
    world = World(passes=5, steps_per_pass=2, pace=0.5)
    assert progress(world, 0) == 0
    assert progress(world, 9) == pytest.approx(1)
    assert progress(world, 3) == pytest.approx((1 - np.exp(-2 / 3)) / (1 - np.exp(-2)))


def test_accuracy_rises_with_thinking_and_falls_past_the_best_budget_only_with_inflation():
    problems = problems_of([[0.8, 0.1, 0.1]], optimum=1024)
    healthy = [at_budget(World(), problems, problems.base_PA, b)[0] for b in BUDGETS]
    assert all(later[0] > earlier[0] for earlier, later in pairwise(healthy))
    inflated = np.asarray([at_budget(World(inflation=1.0), problems, problems.base_PA, b)[0] for b in BUDGETS])
    assert np.argmax(inflated[:, 0]) == BUDGETS.index(1024)
    # Two octaves past the best budget half of the answers are spread evenly over the three.
    on_track, astray = thinking(World(inflation=1.0), problems, problems.base_PA, 4096)
    assert astray == pytest.approx(0.5)
    assert inflated[4, 0] == pytest.approx(0.5 * on_track[0, 0] + 0.5 / 3)
    assert on_track[0, 0] == pytest.approx(0.8, abs=1e-3)
    np.testing.assert_allclose(inflated.sum(axis=1), 1)


def test_truths_are_the_averages_over_every_outcome():
    probs, k = [0.5, 0.3, 0.2], 3
    solved = distinct = 0.0
    for drawn in product(range(3), repeat=k):
        weight = float(np.prod([probs[i] for i in drawn]))
        solved += weight * (0 in drawn)
        distinct += weight * len(set(drawn))
    table = np.asarray([probs])
    assert pass_at(table, k)[0] == pytest.approx(solved)
    assert distinct_at(table, k)[0] == pytest.approx(distinct)
    assert pass_at(table, 1, unreadable=0.1)[0] == pytest.approx(0.45)


def test_pick_gives_each_answer_its_share():
    prob = np.asarray([[0.5, 0.25, 0.25, 0.0], [0.0, 1.0, 0.0, 0.0]])
    luck = np.tile((np.arange(8) + 0.5) / 8, (2, 1))
    picked = pick(prob, luck)
    assert [list(row).count(a) for row in picked for a in range(4)] == [4, 2, 2, 0, 0, 8, 0, 0]
    assert pick(prob, np.full((2, 1), np.nextafter(1, 0))).ravel().tolist() == [2, 1]


# --- the rollouts -----------------------------------------------------------------------------------------------------

LARGE = World(learning=0.6, collapse=0.3, inflation=0.7, problems=60, samples=200, passes=2, budget_samples=200)


def test_measured_rates_are_the_stated_ones():
    rows = frame(make_run(LARGE, seed=11))
    problems = draw_problems(LARGE, seed=11)
    place = {f"problem-{i:03d}": i for i in range(LARGE.problems)}
    for step in (0, 3):
        part = rows[rows.step == step]
        chosen = [place[name] for name in part.prompt_id.unique()]
        truth = pass_at(trained(LARGE, problems, progress(LARGE, step)), 1, unreadable=LARGE.unreadable)[chosen]
        seen = part.groupby("prompt_id").correct.mean().loc[part.prompt_id.unique()].to_numpy()
        error = np.sqrt(truth * (1 - truth) / LARGE.samples)
        assert np.all(np.abs(seen - truth) < 5 * error + 1e-9)
        assert np.abs((seen - truth).mean()) < 4 * np.sqrt((error**2).sum()) / len(chosen)
    final = trained(LARGE, problems, 1.0)
    for budget in (256, 2048, 16384):
        truth = pass_at(at_budget(LARGE, problems, final, budget), 1, unreadable=LARGE.unreadable)
        seen = rows[rows.budget == budget].groupby("prompt_id").correct.mean().loc[list(place)].to_numpy()
        error = np.sqrt(truth * (1 - truth) / LARGE.budget_samples)
        assert np.all(np.abs(seen - truth) < 5 * error + 1e-9)


def test_wrong_answers_follow_their_law_too():
    world = World(problems=3, samples=20_000, passes=0, budgets=(), unreadable=0.0)
    rows = frame(make_baseline(world, seed=5))
    problems = draw_problems(world, seed=5)
    for i in range(3):
        counts = rows[rows.prompt_id == f"problem-{i:03d}"].answer.astype(int).value_counts()
        expected = problems.base_PA[i] * world.samples
        likely = expected > 5
        seen = np.asarray([counts.get(number, 0) for number in problems.number_PA[i]])
        scaled = expected[likely] * seen[likely].sum() / expected[likely].sum()
        assert stats.chisquare(seen[likely], scaled).pvalue > 1e-4
        assert seen[expected == 0].sum() == 0


def test_every_pass_draws_every_problem_and_the_sweep_follows_each_sample():
    world = World(problems=7, samples=3, passes=2, steps_per_pass=2, budget_samples=2, budgets=(256, 1024), tokens=8)
    rows = frame(make_run(world, seed=0))
    assert len(rows) == 7 * 3 * 2 + 7 * 2 * 2
    for first in (0, 2):
        counts = rows[rows.step.isin([first, first + 1])].prompt_id.value_counts()
        assert counts.to_dict() == {f"problem-{i:03d}": 3 for i in range(7)}
    sweep = rows[rows.budget.notna()]
    assert sweep.step.isna().all()
    assert sorted(sweep[sweep.budget == 256].sample_index.value_counts().to_dict().items()) == [(0, 7), (1, 7)]
    assert set(rows.columns) <= set(BY_NAME)
    training = rows[rows.step.notna()]
    for name in set(TOKEN_COLUMNS) & set(rows.columns):
        assert (training[name].map(len) == training.n_tokens).all()
    assert (rows.correct == (rows.reward == 1)).all()
    assert not rows[rows.answer.isna()].correct.any()


@pytest.mark.parametrize("continued", [True, False])
def test_a_continued_trace_keeps_its_answer_and_a_new_sample_does_not(continued: bool):
    world = World(problems=40, budget_samples=10, passes=0, budgets=(65_536, 131_072), continued=continued)
    rows = frame(make_run(world, seed=2)).dropna(subset="budget")
    wide = rows.pivot(index=["prompt_id", "sample_index"], columns="budget", values="answer").fillna("")
    assert (wide[65_536] == wide[131_072]).all() == continued


def test_seeds_and_what_the_knobs_leave_alone():
    small = World(problems=10, samples=4, tokens=6, prompts=True)
    first, again, other = (frame(make_run(small, seed=seed)) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(first, again)
    assert not first.answer.equals(other.answer)
    base, same = (
        draw_problems(small, seed=1),
        draw_problems(replace(small, collapse=1, inflation=1, learning=1), seed=1),
    )
    np.testing.assert_array_equal(base.base_PA, same.base_PA)
    baseline = frame(make_baseline(small, seed=1))
    pd.testing.assert_frame_equal(baseline, frame(make_baseline(replace(small, collapse=1.0), seed=1)))
    untrained = frame(make_run(replace(small, passes=0, budgets=()), seed=1))
    assert not untrained.answer.equals(baseline.answer)  # drawn anew, not copied


def test_prompts_come_with_the_right_answer_and_no_text_stands_for_a_completion():
    rows = frame(make_run(World(problems=5, samples=6, passes=1, tokens=10, prompts=True, unreadable=0.3), seed=4))
    training = rows[rows.step.notna()]
    assert training.answer.isna().any()
    right = training[training.correct]
    assert (right.answer == right.reference_answer).all()
    assert training.prompt.nunique() == 5
    assert "completion" not in rows or rows.completion.isna().all()


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_entropies_are_those_of_the_choice_and_match_the_log_probs():
    weights = np.arange(1, 17) ** -1.7
    assert synthetic_tokens.entropy_of(np.asarray(1.7)) == pytest.approx(stats.entropy(weights))
    n = 4000
    drawn = synthetic_tokens.draw_tokens(
        np.random.default_rng(0), np.arange(n), np.zeros(n), np.full(n, 1.3), np.zeros(n), mean_length=20
    )
    noise = drawn.logprob_T.std() / np.sqrt(len(drawn.logprob_T))
    assert -drawn.logprob_T.mean() == pytest.approx(drawn.entropy_T.mean(), abs=5 * noise)
    assert (drawn.id_T >= 16).mean() == pytest.approx(0.2, abs=0.01)


def test_narrowing_spares_the_forks_and_collapse_does_not():
    def entropies(**effects: float) -> tuple[float, float]:
        """Fork and routine entropy, last step over first."""
        rows = frame(make_run(World(tokens=40, budgets=(), passes=2, **effects), seed=0))
        means = []
        for step in (0, 3):
            part = rows[rows.step == step]
            ids, values = np.concatenate([*part.token_ids]), np.concatenate([*part.entropies])
            means.append((values[ids >= 16].mean(), values[ids < 16].mean()))
        return means[1][0] / means[0][0], means[1][1] / means[0][1]

    forks, routine = entropies(narrowing=1.0)
    assert forks == pytest.approx(1.0, abs=0.05)
    assert routine == pytest.approx(0.23, abs=0.08)
    forks, _ = entropies(collapse=1.0)
    assert forks < 0.3
