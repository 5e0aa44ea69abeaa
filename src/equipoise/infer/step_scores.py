"""How good a reply is that is still being written: what step search keeps and prunes by.

Scores are from 0 to 1, as of a process reward model: the chance that the reply will be right. One that is missing is an error, never
a 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, fsum
from typing import Literal, Protocol

from equipoise.base import Question
from equipoise.errors import UsageError
from equipoise.infer.ballots import read_one
from equipoise.infer.metered import Metered
from equipoise.infer.steps import Branch
from equipoise.infer.thoughts import Markers
from equipoise.infer.together import together
from equipoise.infer.weights import need_judge, score_of
from equipoise.measures.votes import tally_votes

By = Literal["judge", "confidence", "rollouts"]


class StepScorer(Protocol):
    async def score(self, question: Question, metered: Metered, branches: Sequence[Branch]) -> list[float]:
        """One score for each branch, in their order."""
        ...


def make_scorer(by: By, *, rollouts: int, markers: Markers) -> StepScorer:
    if by == "judge":
        return Checked()
    return Confident() if by == "confidence" else Rollouts(rollouts, markers)


@dataclass(frozen=True, slots=True)
class Checked:
    """By the question's own checker: its `progress` for a reply under way, its judge for one that is finished.

    Where there is no `progress` the judge is asked for both, as a process reward model behind `Question.judge` would be.
    """

    async def score(self, question: Question, metered: Metered, branches: Sequence[Branch]) -> list[float]:
        return [self._one(question, branch) for branch in branches]

    def _one(self, question: Question, branch: Branch) -> float:
        completion = branch.completion()
        if question.progress is not None and (not branch.finished or question.judge is None):
            found = question.progress(completion)
        elif question.judge is not None:
            found = score_of(question.judge(completion))
        else:
            raise need_judge("steps scored by judge", question)
        if found is None:
            raise UsageError(
                f"the checker of '{question.id}' gives the beginning of a reply no score: use by=confidence or by=rollouts"
            )
        return found


@dataclass(frozen=True, slots=True)
class Confident:
    """The geometric mean of the probabilities of the last step's tokens, exp((1/n) Σ ln p)."""

    async def score(self, question: Question, metered: Metered, branches: Sequence[Branch]) -> list[float]:
        return [self._one(question, branch) for branch in branches]

    def _one(self, question: Question, branch: Branch) -> float:
        step = branch.steps[-1]
        if not step.n_tokens:
            return 1.0  # it only ended: nothing was said that could be unsure
        if not step.logprobs:
            raise UsageError(
                f"steps scored by confidence need log-probs, and the backend sent none for '{question.id}': use by=judge"
            )
        return exp(min(0.0, fsum(step.logprobs) / len(step.logprobs)))


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The mean of what `n` completions of the reply score, drawn to their ends and booked as probes.

    The scores are the judge's; without one, the share of the completions that give their most common answer. A finished reply
    is its own only roll-out.
    """

    n: int
    markers: Markers

    async def score(self, question: Question, metered: Metered, branches: Sequence[Branch]) -> list[float]:
        draws = {}
        for i, branch in enumerate(branches):
            left = question.how.max_tokens - branch.n_tokens
            if not branch.finished and left > 0:
                draws[i] = metered.draw(
                    question,
                    n=self.n,
                    kind="probe",
                    prompt=branch.prompt(question.prompt, self.markers),
                    how=replace(question.how, max_tokens=left),
                )
        ends = dict(zip(draws, await together(draw.completions() for draw in draws.values()), strict=True))
        return [
            self._one(question, branch, [branch.take(end) for end in ends.get(i, [])])
            for i, branch in enumerate(branches)
        ]

    def _one(self, question: Question, branch: Branch, ends: Sequence[Branch]) -> float:
        drawn = [end.completion() for end in (ends or [branch])]
        answers = [read_one(question, completion) for completion in drawn]
        if question.judge is None:
            votes = tally_votes(answers)
            return max(votes.counts.values(), default=0.0) / len(drawn)
        scores = [
            0.0 if answer is None else (score_of(question.judge(completion)) or 0.0)
            for answer, completion in zip(answers, drawn, strict=True)
        ]
        return fsum(scores) / len(scores)
