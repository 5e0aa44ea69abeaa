"""Search over the steps of a reply: beam search and diverse verifier trees. What is pruned has been paid for, and is counted.

Defaults are those of huggingface/search-and-learn. How beams compare with independent samples: https://arxiv.org/abs/2408.03314.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from equipoise.base import Choice, Question
from equipoise.errors import UsageError
from equipoise.infer.ballots import elect, read_answers
from equipoise.infer.best_of_n import best_with, pick_best
from equipoise.infer.checks import check_count, check_word
from equipoise.infer.metered import Metered
from equipoise.infer.step_scores import By, StepScorer, make_scorer
from equipoise.infer.steps import Branch, Stepping
from equipoise.infer.thoughts import Markers

Pick = Literal["vote", "best"]
SEPARATORS = {"paragraph": "\n\n", "line": "\n", "comma": ",", "tokens": ""}  # how a setting can name them


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What every search over steps is set with."""

    rounds: int = 40
    tokens: int = 2048  # of a step, at most
    steps: str = "paragraph"  # also line, comma, or "tokens": so many of them; any other text ends a step as it stands
    by: By = "judge"
    rollouts: int = 4  # of every step, where they score it
    start: str = "<think>"
    end: str = "</think>"


@dataclass(frozen=True, slots=True)
class Beam(StepSettings):
    """`n` next steps a round; the best n / width are kept and continued `width` ways each, until n replies are finished.

    The last of `rounds` runs to the end of the reply. The answer is that of a vote weighted by the scores, or of the best reply.
    width = 1 keeps everything: n independent replies.
    """

    n: int = 4
    width: int = 4
    pick: Pick = "vote"

    def __post_init__(self) -> None:
        check_steps(self, self.n, self.width)
        check_word("pick", self.pick, Pick)

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        stepping, scorer = begin(self, question, metered)
        going, finished = [Branch()], []
        ways = [self.n]
        for turn in range(self.rounds):
            grown = await stepping.go_on(going, ways, to_end=turn + 1 == self.rounds)
            scored = await score_all(scorer, stepping, [b for group in grown for b in group if not b.failed])
            finished += [branch for branch in scored if branch.finish is not None]
            open_ones = [branch for branch in scored if branch.finish is None]
            if ended(stepping) or len(finished) >= self.n or not open_ones:
                going = open_ones
                break
            going = best(open_ones, max(1, self.n // self.width))
            ways = spread(self.n, len(going))
        return conclude(self.pick, stepping, finished, going)


@dataclass(frozen=True, slots=True)
class DVTS(StepSettings):
    """n / width trees that exchange nothing; each continues only the best of its `width` next steps.

    Diverse verifier tree search: a high score cannot crowd the other trees out. The last proposals of every tree stand for
    election.
    """

    n: int = 4
    width: int = 4
    pick: Pick = "vote"

    def __post_init__(self) -> None:
        check_steps(self, self.n, self.width)
        check_word("pick", self.pick, Pick)

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        stepping, scorer = begin(self, question, metered)
        trees = max(1, self.n // self.width)
        ways = spread(self.n, trees)
        last: list[list[Branch]] = [[] for _ in range(trees)]  # the proposals of a tree
        tops: dict[int, Branch] = {tree: Branch() for tree in range(trees)}
        for turn in range(self.rounds):
            roots = list(tops)
            grown = await stepping.go_on(
                [tops[tree] for tree in roots], [ways[tree] for tree in roots], to_end=turn + 1 == self.rounds
            )
            alive = [[b for b in group if not b.failed] for group in grown]
            scored = iter(await score_all(scorer, stepping, [b for group in alive for b in group]))
            for tree, group in zip(roots, alive, strict=True):
                proposals = [next(scored) for _ in group]
                last[tree] = proposals or last[tree]
                top = best(proposals, 1)
                if top and top[0].finish is None:
                    tops[tree] = top[0]
                else:
                    del tops[tree]
            if ended(stepping) or not tops:
                break
        finals = [branch for proposals in last for branch in proposals]
        finished = [branch for branch in finals if branch.finish is not None]
        return conclude(self.pick, stepping, finished, [branch for branch in finals if branch.finish is None])


def check_steps(search: StepSettings, n: int, width: int = 1) -> None:
    for name, count in {"n": n, "width": width}.items():
        check_count(name, count)
    for name in ("rounds", "tokens", "rollouts"):
        check_count(name, getattr(search, name))
    check_word("score", search.by, By)
    if n % min(n, width):
        raise UsageError(f"n={n} is shared out over trees of width={width}: use a multiple of it")


def begin(search: StepSettings, question: Question, metered: Metered) -> tuple[Stepping, StepScorer]:
    markers = Markers(search.start, search.end)
    stepping = Stepping(
        question,
        metered,
        search.tokens,
        SEPARATORS.get(search.steps, search.steps),
        markers,
        top_logprobs=1 if search.by == "confidence" else None,
    )
    return stepping, make_scorer(search.by, rollouts=search.rollouts, markers=markers)


async def score_all(scorer: StepScorer, stepping: Stepping, branches: Sequence[Branch]) -> list[Branch]:
    scores = await scorer.score(stepping.question, stepping.metered, branches) if branches else []
    return [replace(branch, score=score) for branch, score in zip(branches, scores, strict=True)]


def ended(stepping: Stepping) -> bool:
    return stepping.out_of_budget or stepping.metered.interrupted


def best(branches: Sequence[Branch], n: int) -> list[Branch]:
    """The n with the highest scores; of equals those drawn first."""
    return sorted(branches, key=lambda branch: -(branch.score or 0.0))[:n]


def spread(n: int, over: int) -> list[int]:
    """n ways shared out as evenly as can be, the first getting one more."""
    return [n // over + (i < n % over) for i in range(over)]


def conclude(pick: Pick, stepping: Stepping, finished: Sequence[Branch], going: Sequence[Branch]) -> Choice:
    """The answer of the finished replies; with none of them, the best beginning there is."""
    question, metered = stepping.question, stepping.metered
    leaves = list(finished) or best(going, len(going))
    drawn = [branch.completion() for branch in leaves]
    answers, scores = read_answers(question, drawn), [branch.score for branch in leaves]
    if pick == "vote" or not any(answers):
        weights = [max(0.0, score or 0.0) for score in scores]
        useful = any(weight for weight, answer in zip(weights, answers, strict=True) if answer is not None)
        return elect(
            question, metered, drawn, answers, weights if useful else None, out_of_budget=stepping.out_of_budget
        )
    votes = pick_best(answers, scores, seed=question.seed)
    return metered.choice(
        votes.winner,
        drawn,
        votes,
        stopped_by="budget" if stepping.out_of_budget else "finished",
        chosen=best_with(votes.winner, answers, scores, drawn),
    )
