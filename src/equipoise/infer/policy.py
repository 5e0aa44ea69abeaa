"""How many samples a question gets, decided by what its first few say: a plan in the form in which it is applied.

The first `pilot` samples of a question show a state that needs no reference answer: the votes of their leader, or how many of
them a verifier called right. States are grouped into bins of difficulty; each bin has options, with what they were worth and cost
on questions whose answers were known. A question takes argmax value − price · tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from equipoise.errors import UsageError
from equipoise.infer.allocation import best_action

Goal = Literal["vote", "verified"]
GOALS: tuple[Goal, ...] = ("vote", "verified")
SCHEMA = "equipoise.policy/1"


@dataclass(frozen=True, slots=True)
class Option:
    """`samples` completions in total with the limit `cap`. Those of the pilot count among them where the cap is the pilot's."""

    samples: int
    cap: int | None
    value: float  # expected accuracy
    tokens: float  # expected, besides the pilot's


@dataclass(frozen=True, slots=True)
class Bin:
    """Questions whose pilots look alike: their state is from `low` to `high`."""

    low: int
    high: int
    share: float  # of the questions
    sample_tokens: float  # mean of a pilot's sample
    options: tuple[Option, ...]

    def costs(self, sample_tokens: float) -> list[float]:
        """Of the options, for a question whose own pilot's samples have this mean: all are as much longer as those are."""
        longer = sample_tokens / self.sample_tokens if self.sample_tokens > 0 else 1.0
        return [option.tokens * longer for option in self.options]


@dataclass(frozen=True, slots=True)
class Policy:
    goal: Goal
    pilot: int  # samples that every question gets first
    cap: int | None  # their limit
    price: float  # accuracy that a token must bring
    bins: tuple[Bin, ...]  # in the order of their states

    def find_bin(self, state: int) -> Bin:
        """A state between two bins, or beyond the last, belongs to the nearest."""
        return min(self.bins, key=lambda each: max(each.low - state, state - each.high, 0))

    def choose(self, state: int, *, sample_tokens: float | None = None) -> Option:
        """What a question takes whose pilot shows this state; `sample_tokens`: the mean of its own pilot's samples."""
        found = self.find_bin(state)
        costs = found.costs(found.sample_tokens if sample_tokens is None else sample_tokens)
        return found.options[best_action([option.value for option in found.options], costs, price=self.price)]

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Policy:
        """The policy of `to_dict`, as a plan.json holds it."""
        if told.get("schema") != SCHEMA:
            raise UsageError(
                f"a policy of schema {SCHEMA} was expected, found {told.get('schema')}: make it with equipoise plan"
            )
        bins = tuple(
            Bin(**{**one, "options": tuple(Option(**option) for option in one["options"])}) for one in told["bins"]
        )
        return cls(cast(Goal, told["goal"]), told["pilot"], told["cap"], told["price"], bins)
