"""Sequential revision: the model looks at its last reply again, with what a checker says of it where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from equipoise.base import Answer, Choice, Completion, Grade, Prompt, Question
from equipoise.infer.ballots import read_answers, read_one
from equipoise.infer.best_of_n import pick_best
from equipoise.infer.checks import check_count, check_word
from equipoise.infer.metered import Metered
from equipoise.infer.prompts import REVISE, fence, follow_up
from equipoise.infer.weights import need_judge, score_of
from equipoise.measures.votes import Votes, tally_votes

Pick = Literal["vote", "last", "judge"]
Feedback = Literal["judge", "none"]


@dataclass(frozen=True, slots=True)
class Revision:
    """y_1 ~ π(x), y_{t+1} ~ π(x, y_t, feedback_t), until the judge says right or `turns` are done.

    The answer is the most common of the chain, its last, or the one that the judge scores best. Without a judge 38 % of right
    answers were revised into wrong ones (https://arxiv.org/abs/2408.03314), so the last is not the default.
    """

    turns: int = 4
    pick: Pick = "vote"
    feedback: Feedback = "judge"  # "none": nobody says when it is right, nor what is wrong
    request: str = REVISE

    def __post_init__(self) -> None:
        check_count("turns", self.turns)
        check_word("pick", self.pick, Pick)
        check_word("feedback", self.feedback, Feedback)

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        if self.pick == "judge" and question.judge is None:
            raise need_judge("picks by judge", question)
        judge = question.judge if self.feedback == "judge" else None
        chain: list[Completion] = []
        prompt, right, stopped_by, afresh = question.prompt, None, "finished", 0
        for _ in range(self.turns):
            draw = metered.draw(question, prompt=prompt)
            turn = await draw.completions()
            chain += turn
            grade = judge(turn[0]) if judge is not None and turn and read_one(question, turn[0]) is not None else None
            if grade is not None and grade.correct:
                right, stopped_by = turn[0], "first_right"
                break
            if draw.out_of_budget or metered.interrupted:
                stopped_by = "budget"
                break
            prompt = self._again(question, turn[0], grade)
            afresh += prompt is question.prompt
        answers = read_answers(question, chain)
        votes = self._elect(question, answers, chain, right)
        notes = [f"{afresh} replies had no text to revise: the question was asked again"] if afresh else []
        if judge is None and self.feedback == "judge":
            notes.append("the question has no judge: revised without feedback")
        chosen = right or _last_with(votes.winner, answers, chain)
        return metered.choice(votes.winner, chain, votes, stopped_by=stopped_by, chosen=chosen, notes=notes)

    def _again(self, question: Question, last: Completion, grade: Grade | None) -> Prompt:
        """The question with the last reply to it; the question alone where there is no reply to look at."""
        if not last.text or last.finish == "error":
            return question.prompt
        if question.again is not None:
            own = None if grade is None else question.again([(last, grade)])
            return question.prompt if own is None else own
        told = (
            "" if grade is None or not grade.feedback else f"A checker says:\n{fence('feedback', grade.feedback)}\n\n"
        )
        return follow_up(question.prompt, last.text, told + self.request)

    def _elect(
        self,
        question: Question,
        answers: Sequence[Answer | None],
        chain: Sequence[Completion],
        right: Completion | None,
    ) -> Votes:
        votes = tally_votes(answers, seed=question.seed)
        if right is not None:
            return replace(votes, winner=read_one(question, right), tied=())
        if self.pick == "last":
            readable = [answer for answer in answers if answer is not None]
            return replace(votes, winner=readable[-1] if readable else None, tied=())
        if self.pick == "judge" and question.judge is not None:
            scores = [None if a is None else score_of(question.judge(c)) for a, c in zip(answers, chain, strict=True)]
            if any(score is not None for score in scores):
                return pick_best(answers, scores, seed=question.seed)
        return votes


def _last_with(
    winner: Answer | None, answers: Sequence[Answer | None], chain: Sequence[Completion]
) -> Completion | None:
    """The latest completion of the chain that gave the answer: the most worked over."""
    rows = zip(reversed(answers), reversed(chain), strict=True)
    return next((c for a, c in rows if winner is not None and a is not None and a.text == winner.text), None)
