"""What tokens buy from a policy: three ways to spend them, on the completions that its evaluation recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.base import Estimate
from equipoise.lab.compare import compare
from equipoise.rollouts.readers.table import read_run

BUDGET = 256  # tokens of a question, the same for every policy: some 23 answers
WAYS: Mapping[str, str] = {  # the checker picks the best of n: what a search finds
    "single": "one sample",
    "majority": f"vote, {BUDGET} tokens",
    "best_of_n": f"checked, {BUDGET} tokens",
}
REPEATS = 4  # orders of the recorded samples


@dataclass(frozen=True, slots=True)
class Spending:
    """The accuracy of one policy by the way in which a question's tokens are spent, and the tokens that this took."""

    accuracy: Mapping[str, Estimate]
    tokens: Mapping[str, Estimate]

    def to_dict(self) -> list[dict[str, Any]]:
        return [
            {"strategy": way, "accuracy": self.accuracy[way].to_dict(), "tokens": self.tokens[way].to_dict()}
            for way in self.accuracy
        ]


def spend(folder: Path | str, *, step: int, samples: int) -> Spending:
    """Replay the `samples` completions of every problem that the evaluation at `step` recorded in this run folder."""
    specs = {way: way if way == "single" else f"{way}:n={samples}" for way in WAYS}
    found = compare(
        read_run(folder),
        list(specs.values()),
        budget=BUDGET,
        repeats=REPEATS,
        where={"step": step, "split": "test"},
    )
    arms = {way: found.find(spec) for way, spec in specs.items()}
    return Spending({w: arm.accuracy for w, arm in arms.items()}, {w: arm.tokens for w, arm in arms.items()})
