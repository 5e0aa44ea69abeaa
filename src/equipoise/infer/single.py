"""One completion, as it comes: what every other strategy is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.base import Choice, Question
from equipoise.infer.ballots import elect, read_answers
from equipoise.infer.metered import Metered


@dataclass(frozen=True, slots=True)
class Single:
    """The answer of the first completion, if it holds one."""

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        draw = metered.draw(question)
        drawn = await draw.completions()
        return elect(question, metered, drawn, read_answers(question, drawn), out_of_budget=draw.out_of_budget)
