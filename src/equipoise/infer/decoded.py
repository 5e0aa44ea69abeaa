"""Completions drawn with other decoding settings than the question's own, so that two ways of decoding are two arms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from equipoise.base import Choice, Question, Sampling
from equipoise.infer.best_of_n import BestOfN
from equipoise.infer.checks import check_count, check_word
from equipoise.infer.metered import Metered
from equipoise.infer.vote import Majority

Chosen = Literal["vote", "judge"]
EXTRA = ("min_p", "top_n_sigma", "edt", "repel", "repel_first", "alpha")


@dataclass(frozen=True, slots=True)
class Decoded:
    """The vote over n completions, or the best by the question's judge, sampled with these settings. None: as the question says.

    What they mean: `models.decoding`; `alpha` is that of a proxy-tuned model, 0 its base. A model in this process knows all of them, a
    server some, and what it does not know is refused.
    """

    n: int = 16
    by: Chosen = "vote"
    temperature: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_n_sigma: float | None = None
    edt: float | None = None
    repel: float | None = None
    repel_first: int | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_word("choice", self.by, Chosen)

    def change(self, how: Sampling) -> Sampling:
        extra = {name: value for name in EXTRA if (value := getattr(self, name)) is not None}
        return replace(
            how,
            temperature=how.temperature if self.temperature is None else self.temperature,
            top_p=how.top_p if self.top_p is None else self.top_p,
            extra={**how.extra, **extra},
        )

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        then = Majority(self.n) if self.by == "vote" else BestOfN(self.n)
        return await then(replace(question, how=self.change(question.how)), metered)
