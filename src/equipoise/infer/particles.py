"""Particle filtering over the steps of a reply: sampled in proportion to how good they look, instead of pruned by it.

https://arxiv.org/abs/2502.01618, with the weights and the annealing of its_hub. Axes: N particles.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from equipoise.base import Choice, Question
from equipoise.infer.checks import check_word
from equipoise.infer.metered import Metered
from equipoise.infer.step_search import StepSettings, begin, check_steps, conclude, ended, score_all
from equipoise.infer.steps import Branch

Resample = Literal["multinomial", "systematic"]
PickOne = Literal["best", "sample", "vote"]
LEAST = 1e-7  # a score is at least this far from 0 and from 1
SCARCE = 0.5  # below this share of effective particles, in the first half of the search, weights are flattened


@dataclass(frozen=True, slots=True)
class Particles(StepSettings):
    """n replies grow a step each, then n of them are drawn with w_i ∝ exp(logit r_i) = r_i / (1 − r_i), again and again.

    A finished reply keeps its weight and may be drawn too. The answer is that of the best at the end, of one drawn by its weight,
    or of a vote. `anneal`: while few particles have all the weight early on, the weights are flattened (`anneal_temperature`).
    """

    n: int = 8
    resample: Resample = "multinomial"
    anneal: bool = False
    pick: PickOne = "best"

    def __post_init__(self) -> None:
        check_steps(self, self.n)
        check_word("resampling", self.resample, Resample)
        check_word("pick", self.pick, PickOne)

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        stepping, scorer = begin(self, question, metered)
        random = np.random.default_rng([question.seed, self.n])
        particles = [Branch()] * self.n
        for turn in range(self.rounds):
            going = Counter(id(particle) for particle in particles if particle.finish is None)
            heads = list({id(p): p for p in particles if p.finish is None}.values())
            grown = await stepping.go_on(heads, [going[id(head)] for head in heads], to_end=turn + 1 == self.rounds)
            fresh = await score_all(scorer, stepping, [b for group in grown for b in group if not b.failed])
            particles = [particle for particle in particles if particle.finish is not None] + fresh
            over = ended(stepping) or all(particle.finish is not None for particle in particles)
            if over or turn + 1 == self.rounds:
                break
            heat = 1.0
            if self.anneal:
                heat = anneal_temperature(weigh(_scores(particles)), progress=(turn + 1) / self.rounds)
            weight_N = weigh(_scores(particles), temperature=heat)
            particles = [particles[i] for i in resample(weight_N, self.n, self.resample, random)]
        if self.pick == "sample" and particles:
            particles = [particles[i] for i in resample(weigh(_scores(particles)), 1, "multinomial", random)]
        times = Counter(id(particle) for particle in particles)
        leaves = list({id(particle): particle for particle in particles}.values())
        if self.pick == "vote":  # one vote for each time that it was drawn: its score is in that number already
            leaves = [replace(leaf, score=float(times[id(leaf)])) for leaf in leaves]
        finished = [leaf for leaf in leaves if leaf.finish is not None]
        unfinished = [leaf for leaf in leaves if leaf.finish is None]
        return conclude("vote" if self.pick == "vote" else "best", stepping, finished, unfinished)


def weigh(score_N: np.ndarray, *, temperature: float = 1.0) -> np.ndarray:
    """softmax(logit(r) / T) with r held between 1e-7 and 1 − 1e-7: the weights of a resampling, which sum to 1."""
    held_N = np.clip(score_N, LEAST, 1 - LEAST)
    log_N = (np.log(held_N) - np.log1p(-held_N)) / temperature
    weight_N = np.exp(log_N - log_N.max())
    return np.asarray(weight_N / weight_N.sum())


def effective_size(weight_N: np.ndarray) -> float:
    """1 / Σ w²: n for equal weights, 1 where one has them all."""
    return float(1 / (weight_N**2).sum())


def anneal_temperature(weight_N: np.ndarray, *, progress: float) -> float:
    """max(1, (1 − progress) / (ESS / N)) while ESS / N < ½ and progress < ½; else 1. Never below 1."""
    share = effective_size(weight_N) / len(weight_N)
    return max(1.0, (1 - progress) / share) if share < SCARCE and progress < 0.5 else 1.0


def resample(weight_N: np.ndarray, n: int, how: Resample, random: np.random.Generator) -> list[int]:
    """n places drawn with these weights, each n·w times on average; `systematic` never further than 1 from that."""
    edge_N = np.cumsum(weight_N)
    at_n = random.random(n) if how == "multinomial" else (np.arange(n) + random.random()) / n
    places = np.searchsorted(edge_N, at_n * edge_N[-1], side="right")
    return sorted(int(place) for place in np.minimum(places, len(weight_N) - 1))


def _scores(particles: list[Branch]) -> np.ndarray:
    return np.array([particle.score or 0.0 for particle in particles], dtype=float)
