"""Where the weights of a vote come from. One that is missing is never a silent 0: it is an error, or a plain vote that says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from equipoise.base import Answer, Completion, Grade, Question, Sampling
from equipoise.errors import UsageError
from equipoise.measures.trace_confidence import Rule, trace_confidence

Missing = Literal["error", "majority"]


def with_logprobs(how: Sampling, k: int) -> Sampling:
    return replace(how, top_logprobs=k)


def confidence_of(completion: Completion, rule: Rule, *, window: int) -> float | None:
    """A trace's confidence by a rule, from its tokens, or as it was recorded; None where neither is there."""
    if completion.token_confidences is not None:
        return trace_confidence(completion.token_confidences, rule, window=window, tail=window)
    return (completion.trace_confidences or {}).get(rule)


def stated_confidence(question: Question, completion: Completion) -> float | None:
    """What the model said of itself, 0 to 1, as it was recorded or as the question's judge reads it."""
    if completion.grade is not None:
        return completion.grade.confidence
    return None if question.judge is None else question.judge(completion).confidence


def score_of(grade: Grade) -> float | None:
    """The reward; where a checker gives none, 1 for right and 0 for wrong; None where it failed."""
    if grade.reward is not None:
        return grade.reward
    return None if grade.correct is None else float(grade.correct)


def judge_scores(
    question: Question, answers: Sequence[Answer | None], drawn: Sequence[Completion]
) -> list[float | None]:
    """What the question's judge gives each completion that holds an answer."""
    if question.judge is None:
        raise need_judge("scores by judge", question)
    return [
        None if answer is None else score_of(question.judge(completion))
        for answer, completion in zip(answers, drawn, strict=True)
    ]


def need_judge(what: str, question: Question) -> UsageError:
    return UsageError(
        f"{what} need a verifier or reward, and question '{question.id}' has none: give Question(judge=…), as those of a task "
        "have it, or use by=confidence"
    )


def note_missing(
    answers: Sequence[Answer | None], found: Sequence[float | None], *, missing: Missing, needs: str
) -> tuple[str, ...]:
    """Nothing where every ballot has its number; else the error, or the note on the plain vote that is held instead."""
    ballots = [number for answer, number in zip(answers, found, strict=True) if answer is not None]
    lacking = ballots.count(None)
    if not lacking:
        return ()
    told = f"{lacking} of {len(ballots)} ballots have no weight: {needs}"
    if missing == "error":
        raise UsageError(f"{told}; or use missing=majority for a plain vote")
    return (f"{told}; counted as a plain vote",)


def over_ballots(
    answers: Sequence[Answer | None], found: Sequence[float | None], weigh: Callable[[list[float]], list[float]]
) -> list[float]:
    """Weights made of all ballots' numbers together; what abstains has no part in them."""
    ballots = [i for i, answer in enumerate(answers) if answer is not None]
    weights = [0.0] * len(answers)
    numbers = [number for i in ballots if (number := found[i]) is not None]
    for i, weight in zip(ballots, weigh(numbers), strict=True):
        weights[i] = weight
    return weights


def as_they_are(weights: list[float]) -> list[float]:
    """The numbers as weights. Below 0 they would turn votes against their answer."""
    if weights and min(weights) < 0:
        raise UsageError(
            f"a ballot cannot weigh {min(weights):g}: below 0, more votes for an answer would count against it; "
            "best_of_n and borda only rank such scores"
        )
    return weights
