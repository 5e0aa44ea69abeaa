"""Completions of a small model under one way of decoding, counted by problem. Axes: P problems, G completions each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from equipoise.base import Completion, Grade, Problem
from equipoise.lab.study_numbers import Policies
from equipoise.lab.study_outcomes import COUNTS, Outcomes
from equipoise.models.decoding import Decoding, seed_of
from equipoise.models.generate import generate
from equipoise.models.loaders import Loaded
from equipoise.models.packaged import MAX_TOKENS
from equipoise.models.samples import Samples, read_completions
from equipoise.tasks.countdown import Countdown
from equipoise.tasks.table import find_task

SAMPLES = 64
PART = 64  # problems sampled at once
SEED = "decoding"  # of problems and completions: every way of decoding shares both


@dataclass(frozen=True, slots=True)
class Way:
    """A way of decoding: its family, how it is called, and its settings."""

    family: str
    name: str
    decoding: Decoding = field(default_factory=Decoding)
    wordings: int = 1


def draw_problems(n: int, split: str) -> tuple[Countdown, list[Problem]]:
    task = find_task("countdown")
    assert isinstance(task, Countdown)
    return task, task.problems(SEED, n, split=split)


def count(loaded: Loaded, task: Countdown, problems: Sequence[Problem], way: Way) -> Policies:
    """`SAMPLES` completions of each problem; with several wordings, as many of each."""
    found: list[list[float]] = []
    for first in range(0, len(problems), PART):
        found += _count_part(loaded, task, problems[first : first + PART], way)
    values_CP = np.array(found, dtype=float).T
    values_TP = {name: values_P[None] for name, values_P in zip(COUNTS, values_CP, strict=True)}
    outcomes = Outcomes((way.decoding.temperature,), tuple(p.id for p in problems), values_TP)
    return Policies(way.name, (None,), (outcomes,))


def curve_of(ways: Sequence[Way], counted: Sequence[Policies]) -> Policies:
    """Plain temperatures as one arm, which others are held against."""
    outcomes = [each.outcomes[0] for each in counted]
    values = {name: np.concatenate([one.values_TP[name] for one in outcomes]) for name in COUNTS}
    return Policies(
        "plain temperature",
        (None,),
        (Outcomes(tuple(way.decoding.temperature for way in ways), outcomes[0].problems, values),),
    )


def _count_part(loaded: Loaded, task: Countdown, problems: Sequence[Problem], way: Way) -> list[list[float]]:
    tokens, each = loaded.tokens, SAMPLES // way.wordings
    prompts = [task.reworded(problem, number) for problem in problems for number in range(way.wordings)]
    seeds = [
        seed_of(SEED, problem.id) if number == 0 else seed_of(SEED, problem.id, number)
        for problem in problems
        for number in range(way.wordings)
    ]
    drawn = generate(
        loaded.model,
        [tokens.encode(prompt) for prompt in prompts],
        seeds=seeds,
        samples=each,
        max_tokens=MAX_TOKENS,
        pad=tokens.pad,
        stop=tokens.stop,
        decoding=way.decoding,
    )
    completions = read_completions(drawn, tokens)
    return [
        _counts(task, problem, completions[place * SAMPLES : (place + 1) * SAMPLES], drawn, place)
        for place, problem in enumerate(problems)
    ]


def _counts(
    task: Countdown, problem: Problem, completions: Sequence[Completion], drawn: Samples, place: int
) -> list[float]:
    """The numbers of COUNTS; the KL is not taken."""
    known: dict[str | None, Grade] = {}
    for completion in completions:
        if completion.text not in known:
            known[completion.text] = task.grade(problem, completion)
    grades = [known[completion.text] for completion in completions]
    answers = {grade.answer.text for grade in grades if grade.answer is not None}
    rows = slice(place * SAMPLES, (place + 1) * SAMPLES)
    n_tokens = float(drawn.mask_BT[rows].sum())
    right = sum(grade.correct is True for grade in grades)
    return [SAMPLES, right, len(answers), n_tokens, float(drawn.entropy_BT[rows].sum()), n_tokens, 0.0]
