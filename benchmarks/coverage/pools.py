"""A base model's and a trained run's rollouts on the same problems, as the evidence that one pass would gather.

The base model is `worlds.answer_rates`, in some cases with an unreadable completion now and then. Training moves the log-odds of the
right answer, scatters them, concentrates the wrong answers and, in some cases, loses some problems altogether.
Axes: P problems, A answers (the right one first), samples that abstain last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.coverage import worlds
from benchmarks.coverage.case import Shown
from equipoise.base import Estimate
from equipoise.measures.answers import AnswerTable, Interner
from equipoise.measures.evidence import Evidence
from equipoise.rollouts.run import Run, RunInfo


@dataclass(frozen=True, slots=True)
class Training:
    """What training did to the answer rates."""

    shift: float = 0.5
    noise: float = 0.5
    power: float = 1.3  # of the wrong answers' rates
    lost: float = 0.0  # share of problems never solved any more
    abstain: float = 0.0  # share of completions, before and after, whose answer cannot be read

    def apply(self, rng: np.random.Generator, base_PA: np.ndarray) -> np.ndarray:
        right_P = worlds.shifted_rates(rng, base_PA[:, 0], shift=self.shift, noise=self.noise)
        right_P = np.where(rng.random(len(base_PA)) < self.lost, 0.0, right_P)
        wrong_PA = worlds.sharpened(np.maximum(base_PA[:, 1:], 1e-300), self.power) * (1 - right_P)[:, None]
        return np.column_stack([right_P, wrong_PA])


MOVED = Training()
LOST = Training(shift=1.0, noise=0.3, power=1.5, lost=0.1)
LOST_MORE = Training(shift=1.5, noise=0.3, power=1.5, lost=0.2)
ABSTAIN = 0.05


def rates(rng: np.random.Generator, prompts: int, training: Training) -> tuple[np.ndarray, np.ndarray]:
    """Answer rates of the run and of the base model, given that there is an answer, (P, A) each."""
    base_PA = worlds.answer_rates(rng, prompts)
    return training.apply(rng, base_PA), base_PA


@cache
def population(training: Training) -> tuple[np.ndarray, np.ndarray]:
    """The rates behind a truth that has no closed form."""
    return rates(np.random.default_rng(4), worlds.POPULATION, training)


def draw(rng: np.random.Generator, rates_PA: np.ndarray, samples: int, *, abstain: float) -> np.ndarray:
    """How often each answer came, abstentions last, (P, A + 1)."""
    answered_PA = rates_PA / rates_PA.sum(axis=1, keepdims=True) * (1 - abstain)
    return rng.multinomial(samples, np.column_stack([answered_PA, np.full(len(rates_PA), abstain)]))


def evidence_of(counts_PA: np.ndarray) -> Evidence:
    """What a pass over these rollouts would have gathered."""
    prompts, kinds = counts_PA.shape
    cell = np.repeat(np.arange(prompts * kinds), counts_PA.ravel())
    prompt, kind = cell // kinds, cell % kinds
    empty = AnswerTable()
    numbers = {name: np.full(len(cell), np.nan) for name in empty.numbers}
    codes = {name: np.full(len(cell), -1) for name in empty.codes}
    codes |= {"prompt_id": prompt, "answer": np.where(kind == kinds - 1, -1, kind)}
    names = dict(empty.names)
    names |= {"prompt_id": Interner(map(str, range(prompts))), "answer": Interner(map(str, range(kinds - 1)))}
    table = AnswerTable(numbers, codes, names, (kind == 0).astype(float))
    return Evidence(Run(Path("simulated"), RunInfo("simulated")), table)


def both(rng: np.random.Generator, prompts: int, samples: int, training: Training) -> tuple[Evidence, Evidence]:
    """The evidence of the run and of the base model, on newly drawn problems."""
    run_PA, base_PA = rates(rng, prompts, training)
    run, base = (evidence_of(draw(rng, each_PA, samples, abstain=training.abstain)) for each_PA in (run_PA, base_PA))
    return run, base


def ks_of(samples: int) -> tuple[int, ...]:
    return tuple(sorted({1, 4, samples // 2, samples}))


def shown(estimates: list[Estimate], truths: dict[str, float], samples: int) -> Iterator[Shown]:
    """The estimates that have a truth, under names that are the same for every number of samples.

    A truth's key is the estimate's name, with the class of problems where there is one: "collision, unsolved".
    """
    words = {f"@{samples}": "@n", f"@{samples // 2}": "@n/2", f"^{samples}": "^n", f"^{samples // 2}": "^n/2"}
    for number in estimates:
        problems = number.at.get("problems")
        key = number.name if problems is None else f"{number.name}, {problems}"
        if key in truths and number.value is not None:
            k = number.at.get("k")
            name = next(
                (
                    key.replace(f"{sign}{k}", words[f"{sign}{k}"], 1)
                    for sign in "@^"
                    if f"{sign}{k}" in words and f"{sign}{k}" in key
                ),
                key,
            )
            yield name, number.low, number.high, truths[key]
