"""How often each answer was given to each problem during training: the memory behind historical exploration.

Axes: P groups, G completions each. Answers are canonical strings (`equipoise.text` makes them where an answer is read), so
that equal answers share one counter; None is an answer that could not be read, or padding, and is never counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.errors import UsageError
from equipoise.rollouts.groups import Groups

MOST_ANSWERS = 4096  # per problem: ours


def answers_of(groups: Groups, answers_B: Sequence[str | None]) -> np.ndarray:
    """The rollouts' canonical answers by group, (P, G) objects; None where there is no completion or no readable answer."""
    if groups.row_PG is None:
        raise UsageError("these groups were not made from rollouts, so their rows are unknown: give answers as (P, G)")
    if len(answers_B) != int(groups.keep_PG.sum()):
        raise UsageError(
            f"one answer per rollout is needed: {int(groups.keep_PG.sum())} rollouts, {len(answers_B)} answers"
        )
    answers_PG = np.full(groups.keep_PG.shape, None, dtype=object)
    for place in zip(*np.nonzero(groups.keep_PG), strict=True):
        answers_PG[place] = answers_B[groups.row_PG[place]]
    return answers_PG


class OutcomeCounter:
    """N(x, a): how often answer a was given to problem x (https://arxiv.org/abs/2509.06941).

    The order is fixed: a step's bonus reads the counts of the steps before it, then the step is counted. `visit` does both;
    its count of an answer never seen is 0. Which completion of a group comes first therefore does not matter, and answers
    repeated inside a group are the business of batch exploration. Evaluation calls `count`, which changes nothing.

    A problem keeps its `most_answers` most frequent answers. What is dropped leaves the highest dropped count behind as the
    problem's floor, from which an answer that is not held is read and counted on: a count may be too high by no more than
    the floor, never too low, so that forgetting pays no bonus. Below the cap every count is exact.

    Across workers counts add: each worker counts its own step in a fresh counter, and everyone merges all of those.
    """

    def __init__(self, *, most_answers: int = MOST_ANSWERS) -> None:
        if most_answers < 1:
            raise UsageError(f"most_answers is {most_answers}: a counter must hold at least 1 answer per problem")
        self.most_answers = most_answers
        self._counts: dict[str, dict[str, int]] = {}
        self._floors: dict[str, int] = {}

    def visit(self, prompt_ids_P: Sequence[str | None], answers_PG: np.ndarray) -> np.ndarray:
        """The counts before this step, then count it: the call of a training step."""
        visits_PG = self.count(prompt_ids_P, answers_PG)
        self.observe(prompt_ids_P, answers_PG)
        return visits_PG

    def count(self, prompt_ids_P: Sequence[str | None], answers_PG: np.ndarray) -> np.ndarray:
        """How often each answer was counted so far, (P, G) floats; nan where there is none. Changes nothing."""
        visits_PG = np.full(_shape(prompt_ids_P, answers_PG), np.nan)
        for p, prompt_id in enumerate(prompt_ids_P):
            for g, answer in enumerate(answers_PG[p]):
                if answer is not None:
                    visits_PG[p, g] = self._read(_known(prompt_id), answer)
        return visits_PG

    def observe(self, prompt_ids_P: Sequence[str | None], answers_PG: np.ndarray) -> None:
        """Count the answers of a step, each once."""
        _shape(prompt_ids_P, answers_PG)
        touched = set()
        for prompt_id, answers in zip(prompt_ids_P, answers_PG, strict=True):
            for answer in answers:
                if answer is not None:
                    touched.add(prompt := _known(prompt_id))
                    self._counts.setdefault(prompt, {})[answer] = self._read(prompt, answer) + 1
        # Only now: inside a step no answer may drop out because of where it stood in it.
        self._trim(touched)

    def merge(self, other: OutcomeCounter) -> None:
        """Add what another worker counted. Below the cap, the order of merges does not matter."""
        if other.most_answers != self.most_answers:
            raise UsageError(
                f"counters of one run must share most_answers: {self.most_answers} here, {other.most_answers} there"
            )
        prompts = set(other._counts)
        for prompt in prompts:
            held = self._counts.get(prompt, {}).keys() | other._counts[prompt].keys()
            self._counts[prompt] = {a: self._read(prompt, a) + other._read(prompt, a) for a in sorted(held)}
            floor = self._floors.get(prompt, 0) + other._floors.get(prompt, 0)
            if floor:
                self._floors[prompt] = floor
        self._trim(prompts)

    def state(self) -> dict[str, Any]:
        """Plain JSON, the same for the same counts in whatever order they came."""
        return {
            "most_answers": self.most_answers,
            "counts": {prompt: dict(sorted(counts.items())) for prompt, counts in sorted(self._counts.items())},
            "floors": dict(sorted(self._floors.items())),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the counter that `state` was taken from."""
        try:
            most = int(state["most_answers"])
            counts = {str(p): {str(a): int(n) for a, n in held.items()} for p, held in state["counts"].items()}
            floors = {str(p): int(n) for p, n in state["floors"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise UsageError(
                f"this is not the state of an outcome counter ({problem!r}): pass what state() gave"
            ) from None
        self.most_answers, self._counts, self._floors = most, counts, floors

    def _read(self, prompt: str, answer: str) -> int:
        return self._counts.get(prompt, {}).get(answer, self._floors.get(prompt, 0))

    def _trim(self, prompts: Iterable[str]) -> None:
        for prompt in prompts:
            counts = self._counts[prompt]
            if len(counts) > self.most_answers:
                ranked = sorted(counts, key=lambda answer: (-counts[answer], answer))
                self._floors[prompt] = max(self._floors.get(prompt, 0), counts[ranked[self.most_answers]])
                self._counts[prompt] = {answer: counts[answer] for answer in ranked[: self.most_answers]}


def _shape(prompt_ids_P: Sequence[str | None], answers_PG: np.ndarray) -> tuple[int, int]:
    if np.ndim(answers_PG) != 2 or len(answers_PG) != len(prompt_ids_P):
        raise UsageError(
            f"answers must be (problems, completions): {len(prompt_ids_P)} problems, answers of shape {np.shape(answers_PG)}"
        )
    return int(np.shape(answers_PG)[0]), int(np.shape(answers_PG)[1])


def _known(prompt_id: str | None) -> str:
    if prompt_id is None:
        raise UsageError("a count over steps needs each group's prompt_id, and one has none: give problems stable ids")
    return prompt_id
