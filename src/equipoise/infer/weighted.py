"""Votes in which a completion counts for as much as it is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from equipoise.base import Answer, Choice, Completion, Question
from equipoise.errors import UsageError
from equipoise.infer.ballots import elect, read_answers
from equipoise.infer.checks import check_count, check_word
from equipoise.infer.metered import Metered
from equipoise.infer.weights import (
    Missing,
    as_they_are,
    confidence_of,
    judge_scores,
    need_judge,
    note_missing,
    over_ballots,
    stated_confidence,
    with_logprobs,
)
from equipoise.measures.trace_confidence import Rule

Source = Literal["confidence", "judge", "stated"]

NEEDS: dict[Source, str] = {
    "confidence": "they need log-probs (a sampler that tells top_logprobs, or recorded token or trace confidences)",
    "judge": "the judge gave them neither a reward nor a verdict",
    "stated": "they need a stated confidence (recorded with the completion, or read by the question's judge)",
}


@dataclass(frozen=True, slots=True)
class Weighted:
    """â = argmax_a Σ_i w_i 1[a_i = a]; w_i is the trace's confidence (https://arxiv.org/abs/2508.15260), the reward that the
    question's judge gives (https://arxiv.org/abs/2206.02336), or what the model stated (https://arxiv.org/abs/2507.16806).
    """

    n: int = 16
    by: Source = "confidence"
    rule: Rule = "mean"  # of the confidence: mean, bottom, lowest or tail
    window: int = 2048  # tokens of a group, and of the tail
    k: int = 20  # likeliest tokens that a token's confidence is the mean of
    missing: Missing = "error"  # what a ballot without weight leads to

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_word("weight", self.by, Source)
        check_word("rule", self.rule, Rule)
        check_word("fallback", self.missing, Missing)

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        if self.by == "judge" and question.judge is None:
            raise need_judge("weights by judge", question)
        how = with_logprobs(question.how, self.k) if self.by == "confidence" else question.how
        draw = metered.draw(question, n=self.n, how=how)
        drawn = await draw.completions()
        answers = read_answers(question, drawn)
        found = self._weights(question, answers, drawn)
        notes = note_missing(answers, found, missing=self.missing, needs=NEEDS[self.by])
        weights = None if notes else over_ballots(answers, found, as_they_are)
        if weights and not any(weights):
            weights, notes = None, ("every ballot has weight 0: counted as a plain vote",)
        return elect(question, metered, drawn, answers, weights, out_of_budget=draw.out_of_budget, notes=notes)

    def _weights(
        self, question: Question, answers: Sequence[Answer | None], drawn: Sequence[Completion]
    ) -> list[float | None]:
        if self.by == "judge":
            return judge_scores(question, answers, drawn)
        if self.by == "stated":
            return [stated_confidence(question, completion) for completion in drawn]
        return [confidence_of(completion, self.rule, window=self.window) for completion in drawn]


@dataclass(frozen=True, slots=True)
class Borda:
    """A vote by rank of confidence, w_i = (N − rank_i + 1)^p over the N ballots, rank 1 the surest; p = 0 is the majority.

    https://arxiv.org/abs/2502.18581, there with self-certainty over the whole vocabulary.
    """

    n: int = 16
    p: float = 0.5
    rule: Rule = "mean"
    window: int = 2048
    k: int = 20
    missing: Missing = "error"

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_word("rule", self.rule, Rule)
        check_word("fallback", self.missing, Missing)
        if not 0 <= self.p < np.inf:
            raise UsageError(f"p of borda is 0 (majority) or more, found {self.p}")

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        draw = metered.draw(question, n=self.n, how=with_logprobs(question.how, self.k))
        drawn = await draw.completions()
        answers = read_answers(question, drawn)
        found = [confidence_of(completion, self.rule, window=self.window) for completion in drawn]
        notes = note_missing(answers, found, missing=self.missing, needs=NEEDS["confidence"])
        weights = None if notes else over_ballots(answers, found, partial(borda_weights, p=self.p))
        return elect(question, metered, drawn, answers, weights, out_of_budget=draw.out_of_budget, notes=notes)


def borda_weights(confidences: Sequence[float], *, p: float) -> list[float]:
    """(N − rank + 1)^p, rank 1 the most confident; equal confidences share the mean of their ranks."""
    sure_N = np.asarray(confidences, dtype=float)
    above_N = (sure_N[None, :] > sure_N[:, None]).sum(1)
    equal_N = (sure_N[None, :] == sure_N[:, None]).sum(1)
    weights: list[float] = ((len(sure_N) - above_N - (equal_N + 1) / 2 + 1) ** p).tolist()
    return weights
