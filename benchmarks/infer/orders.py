"""A recorded pool as the strategies see it: for every problem and repeat its samples in order. And what a rule makes of them.

Axes: P problems, R repeats, S settings of a rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np

from equipoise.base import Answer, Question
from equipoise.infer.ballots import read_answers
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.settled import Race
from equipoise.infer.stopping import beta_posterior, unanimous, weigh_leader
from equipoise.lab.compare_run import repeat_seeds
from equipoise.measures.votes import tally_votes
from equipoise.samplers.recorded import RecordedPool


@dataclass(frozen=True, slots=True)
class Order:
    """The samples of one problem in one repeat."""

    question: Question
    answers: tuple[Answer | None, ...]
    correct: tuple[bool, ...]
    tokens: tuple[int, ...]
    leaders: frozenset[str | None]  # of the vote over all samples

    def outcome(self, n: int, said: Answer | None = None) -> tuple[float, float, float, float]:
        """Tokens, agreement, right and samples after the first n; the answer is the vote's, unless one is given."""
        winner = said or tally_votes(self.answers[:n], seed=self.question.seed).winner
        text = None if winner is None else winner.text
        right = False
        if text is not None:
            right = next(c for a, c in zip(self.answers, self.correct, strict=True) if a is not None and a.text == text)
        return float(sum(self.tokens[:n])), float(text in self.leaders), float(right), float(n)


def read_orders(pool: RecordedPool, *, repeats: int, seed: int) -> list[list[Order]]:
    """[problem][repeat], in the orders that `equipoise compare` with this seed uses."""

    async def one(question: Question) -> Order:
        drawn = await Metered(pool, Ledger()).draw(question, n=pool.size(question.id)).completions()
        answers = read_answers(question, drawn)
        votes = tally_votes(answers)
        leaders = votes.tied or ((None,) if votes.winner is None else (votes.winner.text,))
        grades = [c.grade for c in drawn]
        return Order(
            question,
            tuple(answers),
            tuple(bool(grade and grade.correct) for grade in grades),
            tuple(c.n_tokens or 0 for c in drawn),
            frozenset(leaders),
        )

    async def all_of() -> list[list[Order]]:
        asked = [pool.questions(seed=s) for s in repeat_seeds(seed, repeats)]
        return [[await one(questions[p]) for questions in asked] for p in range(len(asked[0]))]

    return asyncio.run(all_of())


Rule = Callable[[Order], list[int]]  # an order → where each setting of the rule stops, in samples


def first_at_least(values: Sequence[float], limits: Sequence[float]) -> list[int]:
    """For every limit the first place (from 1) whose value reaches it; the number of values where none does."""
    highest = np.maximum.accumulate(values)
    return [int(min(np.searchsorted(highest, limit), len(values) - 1)) + 1 for limit in limits]


def counted_up(order: Order) -> list[dict[str, int]]:
    """The counts of answers after every sample, in the order of first sight."""
    counts: dict[str, int] = {}
    found = []
    for answer in order.answers:
        if answer is not None:
            counts[answer.text] = counts.get(answer.text, 0) + 1
        found.append(dict(counts))
    return found


def majority(ns: Sequence[int]) -> Rule:
    return lambda order: [min(n, len(order.answers)) for n in ns]


def adaptive_consistency(thresholds: Sequence[float]) -> Rule:
    def stops(order: Order) -> list[int]:
        tops = [(*sorted(counts.values(), reverse=True)[:2], 0, 0)[:2] for counts in counted_up(order)]
        return first_at_least([beta_posterior(*top) for top in tops], thresholds)

    return stops


def esc(windows: Sequence[int]) -> Rule:
    def stops(order: Order) -> list[int]:
        n = len(order.answers)
        return [next((i for i in range(w, n + 1, w) if unanimous(order.answers[i - w : i])), n) for w in windows]

    return stops


def anytime(alphas: Sequence[float]) -> Rule:
    def stops(order: Order) -> list[int]:
        found = [weigh_leader(counts, alpha=0.5) for counts in counted_up(order)]
        # The evidence against one alpha tells it against all: only the level that is needed moves.
        values = [-inf if e is None else e.log_e - e.log_needed - log(0.5) for e in found]
        return first_at_least(values, [-log(alpha) for alpha in alphas])

    return stops


def settled(alphas: Sequence[float]) -> Rule:
    def stops(order: Order) -> list[int]:
        race = Race(len(order.answers))
        values = [race.add(None if answer is None else answer.text) for answer in order.answers]
        return first_at_least(values, [-log(alpha) for alpha in alphas])

    return stops


def outcomes(orders: list[list[Order]], rule: Rule, *, last_window: Sequence[int] | None = None) -> np.ndarray:
    """(4, P, S): tokens, agreement, right and samples, means over the repeats. `last_window`: ESC's answer is its window's."""
    found = []
    for repeats in orders:
        per_repeat = []
        for order in repeats:
            stops = rule(order)
            said: list[Answer | None] = [None] * len(stops)
            if last_window is not None:
                said = [
                    order.answers[n - 1] if unanimous(order.answers[n - w : n]) else None
                    for n, w in zip(stops, last_window, strict=True)
                ]
            per_repeat.append([order.outcome(n, s) for n, s in zip(stops, said, strict=True)])
        found.append(np.mean(per_repeat, axis=0))
    return np.asarray(found).transpose(2, 0, 1)
