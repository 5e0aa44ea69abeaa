"""Particle filtering: weights and temperatures by hand, resampling by enumeration, and a search on a planted path."""

from __future__ import annotations

from collections import Counter
from math import log

import numpy as np
import pytest
from asking import solve
from test_step_search import PLANTED, THREE, asked, letters, on_path, steps

from equipoise.base import Answer
from equipoise.errors import UsageError
from equipoise.infer.particles import Particles, anneal_temperature, effective_size, resample, weigh


class Given:
    """A generator that says these numbers in turn."""

    def __init__(self, numbers):
        self.numbers = iter(numbers)

    def random(self, n=None):
        return next(self.numbers) if n is None else np.array([next(self.numbers) for _ in range(n)])


def test_weights_are_odds():
    # 0.5, 0.9 and 0.8 have odds 1, 9 and 4.
    assert weigh(np.array([0.5, 0.9, 0.8])) == pytest.approx([1 / 14, 9 / 14, 4 / 14])
    # At temperature 2 their roots: 1, 3 and 2.
    assert weigh(np.array([0.5, 0.9, 0.8]), temperature=2.0) == pytest.approx([1 / 6, 3 / 6, 2 / 6])
    held = weigh(np.array([0.0, 1.0]))
    assert held.sum() == pytest.approx(1)
    assert log(held[1] / held[0]) == pytest.approx(2 * log((1 - 1e-7) / 1e-7))


def test_effective_size_and_temperature_by_hand():
    assert effective_size(np.full(8, 1 / 8)) == pytest.approx(8)
    assert effective_size(np.array([1.0, 0.0, 0.0])) == pytest.approx(1)
    assert effective_size(np.array([0.1, 0.9])) == pytest.approx(1 / 0.82)
    few = np.array([0.97, 0.01, 0.01, 0.01])  # ESS 1 / (0.9409 + 0.0003) = 1.06247, of four 0.26562
    assert anneal_temperature(few, progress=0.25) == pytest.approx(0.75 * 4 * 0.9412)
    assert anneal_temperature(few, progress=0.5) == 1.0  # late
    assert anneal_temperature(np.full(4, 0.25), progress=0.0) == 1.0  # enough of them
    random = np.random.default_rng(0)
    for _ in range(200):
        assert anneal_temperature(random.dirichlet([0.2] * 6), progress=random.random()) >= 1.0


def test_systematic_resampling_is_unbiased_and_never_off_by_one():
    random = np.random.default_rng(1)
    for n in (1, 3, 7):
        weight_N = random.dirichlet(np.ones(5))
        grid = (np.arange(2000) + 0.5) / 2000  # every start
        total = Counter()
        for start in grid:
            counts = Counter(resample(weight_N, n, "systematic", Given([start])))
            assert all(abs(counts[i] - n * weight_N[i]) < 1 for i in range(5))
            total += counts
        assert [total[i] / 2000 for i in range(5)] == pytest.approx(list(n * weight_N), abs=n / 1000)


def test_multinomial_resampling_is_unbiased():
    weight_N = np.array([0.5, 0.0, 0.2, 0.3])
    grid = (np.arange(1000) + 0.5) / 1000
    counts = Counter(resample(weight_N, 1000, "multinomial", Given(grid)))
    assert counts == {0: 500, 2: 200, 3: 300}


def test_equal_weights_keep_every_particle():
    for start in (0.001, 0.4, 0.999):
        assert resample(np.full(6, 1 / 6), 6, "systematic", Given([start])) == list(range(6))


@pytest.mark.parametrize("how", ["multinomial", "systematic"])
def test_a_perfect_scorer_leads_all_particles_along_the_path(how):
    choice, sampler = solve(Particles(n=4, resample=how, **steps()), letters, asked(on_path))
    assert choice.answer == Answer(PLANTED)
    assert sampler.prompts == ["Q"] * 4 + ["Qc"] * 4 + ["Qcb"] * 4
    assert choice.spent.generated == sampler.generated == 4 * THREE


def test_finished_particles_keep_their_weight_and_are_drawn_again():
    """One is finished at once and good; three go on and are bad: all particles become the one, and nothing more is drawn."""

    def say(prompt, index):
        return "cbd" if index == 0 else "aaaa"

    def good(completion):
        return 1.0 if completion.text == PLANTED else 0.0

    question = asked(good, max_tokens=9)
    choice, sampler = solve(Particles(n=4, tokens=3, steps="tokens", pick="vote"), say, question)
    assert (choice.answer, dict(choice.ballots)) == (Answer(PLANTED), {PLANTED: 4.0})
    assert (sampler.generated, len(choice.drawn)) == (12, 1)


def test_constant_scores_are_plain_sampling():
    """No score tells replies apart, so over seeds every letter is as common at the end as it is drawn."""
    firsts = Counter()
    for seed in range(300):
        question = asked(lambda completion: 0.5, seed=seed)
        choice, _ = solve(Particles(n=4, pick="sample", **steps()), letters, question)
        firsts[choice.drawn[0].text[0]] += 1
    assert all(abs(firsts[letter] - 75) < 3 * 7.5 for letter in "abcd")  # binomial, three standard deviations


def test_the_budget_ends_it_with_the_best_beginning():
    for budget in range(12):
        choice, sampler = solve(Particles(n=4, **steps()), letters, asked(on_path), budget=budget)
        assert choice.stopped_by == "budget"
        assert choice.spent.generated == sampler.generated <= budget


@pytest.mark.parametrize("settings", [{"n": 0}, {"resample": "residual"}, {"pick": "worst"}, {"by": "luck"}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(UsageError):
        Particles(**settings)
