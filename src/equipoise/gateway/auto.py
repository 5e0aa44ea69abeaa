"""The strategy `auto`: a plan of `equipoise plan` applied to a question that nobody has seen."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.base import Choice, Completion, Question
from equipoise.errors import UsageError
from equipoise.infer.ballots import elect, read_answers
from equipoise.infer.metered import Metered
from equipoise.infer.policy import Policy

MAX_PLAN = 64 * 1024 * 1024  # bytes


@dataclass(frozen=True, slots=True)
class Auto:
    """The pilot's samples first; what they show says how many more there are, and at which cap. Then a vote over all.

    Samples of the pilot have their vote where the option keeps the pilot's cap; else they were for the decision alone.
    """

    policy: Policy
    width: int  # samples at most

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        pilot = metered.draw(_capped(question, self.policy.cap), n=min(self.policy.pilot, self.width))
        drawn = await pilot.completions()
        votes = Counter(answer.text for answer in read_answers(question, drawn) if answer is not None)
        made = [completion.n_tokens or 0 for completion in drawn]
        option = self.policy.choose(
            max(votes.values(), default=0), sample_tokens=sum(made) / len(made) if made else None
        )
        again = option.cap != self.policy.cap
        more = min(option.samples, self.width) - (0 if again else len(drawn))
        voting: list[Completion] = list(drawn)
        out_of_budget = pilot.out_of_budget
        if more > 0 and not out_of_budget and not metered.interrupted:
            draw = metered.draw(_capped(question, option.cap), n=more)
            found = await draw.completions()
            out_of_budget = draw.out_of_budget
            voting = found if again else voting + found
            drawn = drawn + found
        choice = elect(question, metered, voting, read_answers(question, voting), out_of_budget=out_of_budget)
        return replace(choice, drawn=tuple(drawn))


def read_plan(path: Path) -> Policy:
    """The policy in a plan.json. One for a verifier is refused: a gateway has none."""
    try:
        with open(path, "rb") as handle:
            told = json.loads(handle.read(MAX_PLAN))
        policy = Policy.of(told["policy"])
    except OSError as problem:
        raise UsageError(f"cannot read the plan {path}: {problem.strerror or problem}") from problem
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        if isinstance(problem, UsageError):
            raise
        raise UsageError(f"{path} is no plan: make one with equipoise plan") from problem
    if policy.goal != "vote":
        raise UsageError(f"{path} plans for a verifier, and a gateway votes: make it with equipoise plan --goal vote")
    return policy


def _capped(question: Question, cap: int | None) -> Question:
    if cap is None:
        return question
    return replace(question, how=replace(question.how, max_tokens=min(cap, question.how.max_tokens)))
