"""What completions vote for. One that was given up or failed casts no vote: its text may look like an answer and is not one."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.base import Answer, Choice, Completion, Question
from equipoise.infer.metered import GIVEN_UP, Metered
from equipoise.measures.votes import tally_votes


def read_answers(question: Question, drawn: Sequence[Completion]) -> list[Answer | None]:
    return [read_one(question, completion) for completion in drawn]


def read_one(question: Question, completion: Completion) -> Answer | None:
    return None if completion.finish in (*GIVEN_UP, "error") else question.read(completion)


def first_with(
    winner: Answer | None, answers: Sequence[Answer | None], drawn: Sequence[Completion]
) -> Completion | None:
    """The first completion that gave the winning answer."""
    if winner is None:
        return None
    return next(c for a, c in zip(answers, drawn, strict=True) if a is not None and a.text == winner.text)


def elect(
    question: Question,
    metered: Metered,
    drawn: Sequence[Completion],
    answers: Sequence[Answer | None],
    weights: Sequence[float] | None = None,
    *,
    out_of_budget: bool,
    notes: Sequence[str] = (),
) -> Choice:
    """The winner of a vote over these answers, each with weight 1 where no weights are given."""
    votes = tally_votes(answers, weights, seed=question.seed)
    return metered.choice(
        votes.winner,
        drawn,
        votes,
        stopped_by="budget" if out_of_budget else "finished",
        chosen=first_with(votes.winner, answers, drawn),
        notes=notes,
    )
