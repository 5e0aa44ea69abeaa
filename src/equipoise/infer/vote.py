"""Votes over independent completions. What holds no answer abstains, and never forms a class of its own."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.base import Choice, Question
from equipoise.infer.ballots import elect, read_answers
from equipoise.infer.metered import Metered


@dataclass(frozen=True, slots=True)
class Majority:
    """The most common answer of n: â = argmax_a Σ_i 1[a_i = a] (self-consistency, https://arxiv.org/abs/2203.11171)."""

    n: int = 16

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        draw = metered.draw(question, n=self.n)
        drawn = await draw.completions()
        return elect(question, metered, drawn, read_answers(question, drawn), out_of_budget=draw.out_of_budget)
