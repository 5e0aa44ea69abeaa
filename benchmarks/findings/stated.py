"""Tasks with a stated confidence: `2*(3*7-9),8` answers and says 8 of 9. Tasks and a reward for studies, and what teaches the form.

The models of the package state nothing. They learn to by imitating themselves: completions of their own, each with a digit that was drawn
blindly. So the base model of these studies answers as it did before, and its confidence says nothing: whatever it says later,
reinforcement taught it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.findings.policies import Policy
from equipoise.base import Answer, Completion, Grade, Problem
from equipoise.files import atomic_write, make_folder
from equipoise.shaping.brier import brier
from equipoise.tasks.countdown import Countdown
from equipoise.tasks.task import Seed, mix_seed
from equipoise.tasks.trips import Trips

MARK, LEVELS = ",", 10  # the digits 0 to 9 stand for 0, 1/9, …, 1
TRIES = 4  # completions of a problem that teach the form


class WithConfidence(ABC):
    """Reads the confidence off what a task then reads and grades as ever."""

    __slots__ = ()

    @property
    @abstractmethod
    def task(self) -> Countdown | Trips: ...

    @property
    def env(self) -> str:
        return f"{self.task.env}-stated"

    def problems(self, seed: Seed, n: int, *, split: str = "train") -> list[Problem]:
        return self.task.problems(seed, n, split=split)

    def read(self, problem: Problem, text: str) -> Answer | None:
        return self.task.read(problem, part(text)[0])

    def grade(self, problem: Problem, completion: Completion) -> Grade:
        """As the task grades what stands before the confidence. Without one the form is broken, and the answer counts all the same."""
        if completion.text is None:
            return self.task.grade(problem, completion)
        answer, confidence = part(completion.text)
        # What stands before a confidence is complete, whatever became of the rest.
        finish = completion.finish if confidence is None else "stop"
        found = self.task.grade(problem, replace(completion, text=answer, finish=finish))
        return replace(found, confidence=confidence, format_ok=bool(found.format_ok) and confidence is not None)


@dataclass(frozen=True, slots=True)
class Stated(WithConfidence):
    """`benchmarks.findings.stated:Stated:numbers=4` in a study's file."""

    numbers: int = 4

    @property
    def task(self) -> Countdown:
        return Countdown(numbers=self.numbers)


@dataclass(frozen=True, slots=True)
class StatedTrips(WithConfidence):
    """`benchmarks.findings.stated:StatedTrips:dates=2`: what pays is a right plan."""

    dates: int = 2

    @property
    def task(self) -> Trips:
        return Trips(dates=self.dates, reward="right")


def part(text: str) -> tuple[str, float | None]:
    """The answer and the confidence stated after it; None: it states none."""
    answer, mark, stated = text.rpartition(MARK)
    if mark and len(stated) == 1 and stated in "0123456789":
        return answer, int(stated) / (LEVELS - 1)
    return text, None


def brier_term(
    correct_PG: np.ndarray, confidence_PG: np.ndarray, keep_PG: np.ndarray, *, weight: float = 1.0
) -> np.ndarray:
    """What the Brier reward of RLCR has beyond correctness, which is the task's own reward: −weight (q − y)², without a q −weight − y."""
    return np.asarray(brier(correct_PG, confidence_PG, keep_PG, weight=weight, malformed="worst") - correct_PG)


def write_told(path: Path, policy: Policy, *, n: int, seed: int = 0) -> int:
    """A policy's own completions of `n` training problems, `TRIES` of each, with a confidence drawn blindly; how many lines there are."""
    from benchmarks.findings.drawing import Drawer  # inside: a task is looked up without torch

    drawer = Drawer(policy)
    posed = drawer.task.problems(("told", seed), n)
    make_folder(path.parent)
    count = 0
    with atomic_write(path) as handle:
        for batch in drawer.batches(posed, samples=TRIES, temperature=1.0, seed=("told", seed)):
            for row, completion in enumerate(batch.completions):
                problem = batch.problems[row // TRIES]
                if completion.finish != "stop" or not completion.text:
                    continue
                digit = Random(mix_seed("digit", seed, problem.id, row % TRIES)).randrange(LEVELS)
                told = {"prompt": problem.prompt, "completion": f"{completion.text}{MARK}{digit}"}
                told |= {} if completion.thinking is None else {"thinking": completion.thinking}
                handle.write((json.dumps(told) + "\n").encode())
                count += 1
    return count
