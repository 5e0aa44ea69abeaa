"""Whole solutions that a search keeps: islands of candidates, who is a parent, who emigrates, and which elites differ.

Pure but for the random numbers that are passed in. A score is better the higher it is, wherever it begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from math import exp, fsum
from random import Random

from equipoise.base import Answer, Completion, Grade
from equipoise.errors import UsageError


@dataclass(frozen=True, slots=True)
class Candidate:
    """A solution that could be read and scored."""

    completion: Completion
    answer: Answer
    grade: Grade
    score: float


@dataclass(slots=True)
class Island:
    """Candidates by their answers: equal answers are one candidate, the first that came."""

    members: dict[str, Candidate] = field(default_factory=dict)

    def add(self, candidate: Candidate) -> None:
        self.members.setdefault(candidate.answer.text, candidate)

    def best(self, n: int) -> list[Candidate]:
        return best_of(list(self.members.values()), n)

    @property
    def mean_score(self) -> float | None:
        scores = [candidate.score for candidate in self.members.values()]
        return fsum(scores) / len(scores) if scores else None


def boltzmann(scores: Sequence[float], *, temperature: float) -> list[float]:
    """p_i = exp(s_i / T) / Σ_j exp(s_j / T), shifted by the highest score, so that it is finite for any of them."""
    if not temperature > 0:
        raise UsageError(f"a selection temperature is above 0, found {temperature}")
    top = max(scores)
    weights = [exp((score - top) / temperature) for score in scores]
    total = fsum(weights)
    return [weight / total for weight in weights]


def pick_parents(
    island: Island, random: Random, *, most: int, no_parents: float, temperature: float
) -> list[Candidate]:
    """None with probability `no_parents`; else 1 to `most`, each number as likely, drawn by their scores and no one twice."""
    left = list(island.members.values())
    if random.random() < no_parents:
        return []
    wanted = random.randint(1, most)
    parents: list[Candidate] = []
    while left and len(parents) < wanted:
        shares = boltzmann([candidate.score for candidate in left], temperature=temperature)
        parents.append(left.pop(random.choices(range(len(left)), shares)[0]))
    return parents


def migrate(islands: Sequence[Island], place: int, *, emigrants: int) -> None:
    """Clone an island's best to the next one, the last one's to the first."""
    if len(islands) > 1:
        for candidate in islands[place].best(emigrants):
            islands[(place + 1) % len(islands)].add(candidate)


def weakest(islands: Sequence[Island], n: int) -> list[int]:
    """The `n` islands with the lowest mean score, an empty one first of all; at least one island is left out."""

    def key(place: int) -> tuple[bool, float, int]:
        mean = islands[place].mean_score
        return (mean is not None, mean or 0.0, place)

    return sorted(range(len(islands)), key=key)[: min(n, len(islands) - 1)]


def elites_of(islands: Sequence[Island], n: int) -> list[Candidate]:
    """The best of all islands together, no answer twice."""
    everyone: dict[str, Candidate] = {}
    for island in islands:
        for text, candidate in island.members.items():
            everyone.setdefault(text, candidate)
    return best_of(list(everyone.values()), n)


def pick_diverse(candidates: Sequence[Candidate], n: int, *, keep: int = 1) -> list[Candidate]:
    """The first `keep`, or one, then again and again the one least like those taken; by `difflib`'s ratio of the answers."""
    taken, left = list(candidates[: max(1, keep)]), list(candidates[max(1, keep) :])
    while left and len(taken) < n:
        alike = [max(_likeness(one, other) for other in taken) for one in left]
        taken.append(left.pop(alike.index(min(alike))))
    return taken


def best_of(candidates: Sequence[Candidate], n: int) -> list[Candidate]:
    """The highest scores first; those that came first among equals."""
    return sorted(candidates, key=lambda candidate: -candidate.score)[:n]


def _likeness(one: Candidate, other: Candidate) -> float:
    return SequenceMatcher(None, one.answer.text, other.answer.text, autojunk=False).ratio()
