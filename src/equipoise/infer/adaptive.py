"""Votes that stop when they look settled. Their thresholds are no error bounds once one looks more than once: see `anytime`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest

from equipoise.base import Answer, Choice, Completion, Question
from equipoise.infer.ballots import first_with, read_answers, read_one
from equipoise.infer.checks import check_count, check_share
from equipoise.infer.metered import Metered
from equipoise.infer.stopping import agreement, beta_posterior, count_answers, doubling_batches, unanimous
from equipoise.measures.votes import tally_votes

Enough = Callable[[Sequence[Answer | None]], bool]


@dataclass(frozen=True, slots=True)
class AdaptiveConsistency:
    """Votes until the leader is likelier than the runner-up with P = 1 − I_½(v₁ + 1, v₂ + 1) ≥ threshold.

    https://arxiv.org/abs/2305.11860, with its threshold and cap. Four equal votes stop it; so do 6 to 1, but not 5 to 1.
    """

    threshold: float = 0.95
    cap: int = 40
    at_once: int = 1  # under way together; those not needed any more are cancelled, and their tokens were spent

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold)
        check_count("cap", self.cap)
        check_count("at_once", self.at_once)

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        poll = await vote_until(question, metered, self._enough, cap=self.cap, at_once=self.at_once)
        return poll.choice(question, metered, stopped_by="consensus")

    def _enough(self, answers: Sequence[Answer | None]) -> bool:
        counts = count_answers(answers)
        first, second, *_ = *nlargest(2, counts.values()), 0, 0
        return beta_posterior(first, second) >= self.threshold


@dataclass(frozen=True, slots=True)
class ESC:
    """Windows of votes until all of one window agree: its answer; else the most common of all at the cap.

    Early-stopping self-consistency, https://arxiv.org/abs/2401.10480, with the window and cap of its released scripts.
    """

    window: int = 5
    cap: int = 40

    def __post_init__(self) -> None:
        check_count("window", self.window)
        check_count("cap", self.cap)

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        windows = [self.window] * (self.cap // self.window)  # the rest is no full window: nothing to agree in
        rest = [self.cap % self.window] if self.cap % self.window else []
        poll = await vote_in_batches(question, metered, self._enough, batches=[*windows, *rest])
        agreed = poll.answers[-1] if poll.stopped else None
        return poll.choice(question, metered, stopped_by="unanimous", answer=agreed)

    def _enough(self, answers: Sequence[Answer | None]) -> bool:
        return len(answers) % self.window == 0 and unanimous(answers[-self.window :])


@dataclass(frozen=True, slots=True)
class Doubling:
    """Batches of 2, 2, 4, 8, … votes until the leader has `share` of them: its_hub 1.2.0's adaptive self-consistency.

    Here to be compared with: two equal votes out of two stop it.
    """

    share: float = 0.75
    cap: int = 40

    def __post_init__(self) -> None:
        check_share("share", self.share)
        check_count("cap", self.cap)

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        poll = await vote_in_batches(question, metered, self._enough, batches=doubling_batches(self.cap))
        return poll.choice(question, metered, stopped_by="consensus")

    def _enough(self, answers: Sequence[Answer | None]) -> bool:
        return agreement(count_answers(answers)) >= self.share


@dataclass(frozen=True, slots=True)
class Poll:
    """The votes that a rule has seen, with all that was drawn."""

    drawn: tuple[Completion, ...]
    answers: tuple[Answer | None, ...]  # of the first of these
    stopped: bool  # by the rule
    out_of_budget: bool

    def choice(
        self,
        question: Question,
        metered: Metered,
        *,
        stopped_by: str,
        answer: Answer | None = None,
        notes: Sequence[str] = (),
    ) -> Choice:
        """The most common of the answers, unless one is given."""
        votes = tally_votes(self.answers, seed=question.seed)
        winner = votes.winner if answer is None else answer
        return metered.choice(
            winner,
            self.drawn,
            votes,
            stopped_by=stopped_by if self.stopped else "budget" if self.out_of_budget else "finished",
            chosen=first_with(winner, self.answers, self.drawn[: len(self.answers)]),
            notes=notes,
        )


async def vote_until(question: Question, metered: Metered, enough: Enough, *, cap: int, at_once: int) -> Poll:
    """Votes one after the other until the rule has enough of them.

    They are counted in the order in which they were started, whatever the order in which they end: short completions end
    first, and are not a fair sample of the answers. One that had less room than the others is none either: it has its vote,
    but the rule does not see it.
    """
    answers: list[Answer | None] = []
    seen: list[Answer | None] = []
    stopped = False
    async with metered.draw(question, n=cap, at_once=at_once) as draw:
        async for chunk in draw:
            while chunk.finish is not None and not stopped and len(answers) in draw.done:
                place = len(answers)
                answers.append(read_one(question, draw.done[place]))
                if place not in draw.short:
                    seen.append(answers[-1])
                    stopped = enough(seen)
            if stopped:
                draw.cancel_rest("consensus")
    drawn = tuple(draw.done[place] for place in sorted(draw.done))
    return Poll(drawn, tuple(answers), stopped, draw.out_of_budget)


async def vote_in_batches(question: Question, metered: Metered, enough: Enough, *, batches: Iterable[int]) -> Poll:
    """Votes in batches; the rule sees all of them after each."""
    drawn: list[Completion] = []
    answers: tuple[Answer | None, ...] = ()
    for batch in batches:
        draw = metered.draw(question, n=batch)
        drawn += await draw.completions()
        answers = tuple(read_answers(question, drawn))
        if draw.out_of_budget or metered.interrupted:
            return Poll(tuple(drawn), answers, False, draw.out_of_budget)
        if enough(answers):
            return Poll(tuple(drawn), answers, True, False)
    return Poll(tuple(drawn), answers, False, False)
