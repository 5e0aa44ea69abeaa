"""Which problems a step poses, all of the split "train": fresh ones, those of a pool, or of a pool by a curriculum.

sampling.pool   method.curriculum   a step poses
–               –                   problems that no other step poses, but for chance
4096            –                   an even draw from one set: what a curriculum is to be compared with
4096            curriculum          a draw from the same set by what the model has made of each
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from equipoise.base import Problem
from equipoise.catalogue.build import build, read_spec
from equipoise.errors import UsageError
from equipoise.models.decoding import seed_of
from equipoise.rollouts.groups import Groups
from equipoise.tasks.task import Task


class Curriculum(Protocol):
    """What chooses from a pool; its class takes a `seed`. State is plain JSON."""

    def add(self, prompt_ids: Sequence[str]) -> None: ...

    def draw(self, n: int, *, beside: Sequence[str] = ()) -> tuple[str, ...]:
        """`n` for the next step, or `n` more for the one whose problems so far are `beside`."""
        ...

    def observe(
        self, *, prompt_ids_P: Sequence[str | None], correct_PG: np.ndarray | None, keep_PG: np.ndarray
    ) -> None:
        """The verdicts of a step."""
        ...

    def tiers(self) -> dict[str, int]:
        """For the log: how many problems stand where."""
        ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class ProblemSource:
    """Draws the problems of a step. All that is random follows from the seed, the step and the curriculum's state."""

    def __init__(
        self, task: Task, *, seed: int, most: int = 1, pool: int | None = None, curriculum: str | None = None
    ) -> None:
        """`most`: problems that a step may ask for. A task that has fewer is refused now, not in the midst of a run."""
        self._task, self._seed = task, seed
        self._pool: dict[str, Problem] = {}
        self.curriculum: Curriculum | None = None
        if pool is None:
            task.problems((seed, "train", 1), most)
        else:
            problems = task.problems((seed, "pool"), pool)
            self._pool = {problem.id: problem for problem in problems}
            if len(self._pool) < len(problems):
                raise UsageError(f"two problems of {task.env} share an id: a pool needs ids that tell problems apart")
        if curriculum is not None:
            start = read_spec(curriculum)[1].get("seed", 0)
            made: Curriculum = build(curriculum, seed=seed_of(seed, "curriculum", start))
            made.add(list(self._pool))
            self.curriculum = made

    def draw(self, step: int, n: int, *, beside: Sequence[Problem] = ()) -> list[Problem]:
        """`n` problems of a step, different from each other and from those `beside` them, which the step has drawn before."""
        first, last = len(beside), len(beside) + n
        if not self._pool:
            return self._task.problems((self._seed, "train", step), last)[first:]
        if self.curriculum is not None:
            return [self._pool[name] for name in self.curriculum.draw(n, beside=[problem.id for problem in beside])]
        order = np.random.default_rng(seed_of(self._seed, "pool", step)).permutation(len(self._pool))
        problems = list(self._pool.values())
        return [problems[place] for place in order[first:last]]

    def observe(self, groups: Groups) -> None:
        """The raw verdicts of a step; call it once, after all of its draws."""
        if self.curriculum is not None:
            self.curriculum.observe(
                prompt_ids_P=groups.prompt_ids_P, correct_PG=groups.correct_PG, keep_PG=groups.keep_PG
            )

    def metrics(self) -> dict[str, float]:
        tiers = {} if self.curriculum is None else self.curriculum.tiers()
        return {f"curriculum/{tier}": float(count) for tier, count in tiers.items()}

    def state(self) -> dict[str, Any]:
        return {"curriculum": None if self.curriculum is None else self.curriculum.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if (state["curriculum"] is None) != (self.curriculum is None):
            raise UsageError(
                "this checkpoint was made with another curriculum: resume with the config that it was made with"
            )
        if self.curriculum is not None:
            self.curriculum.restore(state["curriculum"])
