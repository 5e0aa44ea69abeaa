"""Votes over answers. An unreadable answer abstains: it is counted and never forms a class of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from equipoise.base import Answer
from equipoise.errors import UsageError

TIE = 1e-12  # relative: sums of weights that differ only by rounding are equal


@dataclass(frozen=True, slots=True)
class Votes:
    """A count of answers. `counts` maps each answer's text to its votes (weights, where given), in order of first sight."""

    winner: Answer | None  # None: every one abstained
    counts: Mapping[str, float]
    abstained: int
    tied: tuple[str, ...]  # the answers that shared the lead, winner included; empty where one led alone


def tally_votes(
    answers: Iterable[Answer | None], weights: Sequence[float] | None = None, *, seed: int | None = None
) -> Votes:
    """â = argmax_a Σ_i w_i 1[a_i = a], with w = 1 where no weights are given (https://arxiv.org/abs/2203.11171).

    Ties: one of the leaders, each equally likely and the same for the same seed, in whatever order the answers came;
    without a seed the one seen first.
    """
    ballots = list(answers)
    if weights is not None and len(weights) != len(ballots):
        raise UsageError(f"a weighted vote needs one weight per answer: {len(ballots)} answers, {len(weights)} weights")
    if weights is not None and not all(math.isfinite(weight) for weight in weights):
        raise UsageError(
            "a weighted vote needs finite weights: leave an answer without a weight out, or give it None as answer"
        )
    cast: dict[str, list[float]] = {}
    seen: dict[str, Answer] = {}
    for answer, weight in zip(ballots, [1.0] * len(ballots) if weights is None else weights, strict=True):
        if answer is not None:
            cast.setdefault(answer.text, []).append(weight)
            seen.setdefault(answer.text, answer)
    # fsum does not depend on the order, so neither does the winner.
    counts = {text: math.fsum(each) for text, each in cast.items()}
    abstained = sum(answer is None for answer in ballots)
    if not counts:
        return Votes(None, counts, abstained, ())
    best = max(counts.values())
    leaders = [text for text, votes in counts.items() if math.isclose(votes, best, rel_tol=TIE, abs_tol=0)]
    chosen = leaders[0] if seed is None else Random(seed).choice(sorted(leaders))
    return Votes(seen[chosen], counts, abstained, tuple(leaders) if len(leaders) > 1 else ())
