"""Completions of several wordings of one question: the variety comes from what is asked, not from how tokens are drawn."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.base import Choice, Prompt, Question
from equipoise.errors import UsageError
from equipoise.infer.ballots import elect, read_answers
from equipoise.infer.best_of_n import crown, pick_best
from equipoise.infer.checks import check_count, check_word
from equipoise.infer.decoded import Chosen
from equipoise.infer.metered import Metered
from equipoise.infer.prompts import WAYS, led_by
from equipoise.infer.together import together
from equipoise.infer.weights import judge_scores, need_judge


@dataclass(frozen=True, slots=True)
class DiversePrompts:
    """n completions over `wordings` prompts, as evenly as they go, then the vote or the judge's best (https://arxiv.org/abs/2502.11027).

    The first wording is the question's own. The others are the task's, where it knows how to put a problem in other ways, and else
    the question led by a way to go about it (`WAYS` of `prompts`, ours).
    """

    n: int = 16
    wordings: int = 4
    by: Chosen = "vote"

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_count("wordings", self.wordings)
        check_word("choice", self.by, Chosen)

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        if self.by == "judge" and question.judge is None:
            raise need_judge("chooses by judge", question)
        count = min(self.wordings, self.n)
        shares = [self.n // count + (i < self.n % count) for i in range(count)]
        draws = [
            metered.draw(question, n=share, prompt=worded(question, number)) for number, share in enumerate(shares)
        ]
        drawn = [completion for each in await together(d.completions() for d in draws) for completion in each]
        out = any(draw.out_of_budget for draw in draws)
        answers = read_answers(question, drawn)
        if self.by == "vote":
            return elect(question, metered, drawn, answers, out_of_budget=out)
        scores = judge_scores(question, answers, drawn)
        scored = [a if s is not None else None for a, s in zip(answers, scores, strict=True)]
        votes = pick_best(scored, scores, seed=question.seed)
        return crown(metered, votes, drawn, scored, scores, out_of_budget=out)


def worded(question: Question, number: int) -> Prompt:
    """The question in the wording of this number; 0 is as it is."""
    if question.reworded is not None:
        return question.reworded(number)
    if number > len(WAYS):
        raise UsageError(
            f"there are {len(WAYS) + 1} wordings of a question that its task cannot put otherwise: use fewer"
        )
    return question.prompt if number == 0 else led_by(question.prompt, WAYS[number - 1])
