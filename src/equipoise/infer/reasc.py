"""Adaptive self-consistency in which a sure completion counts for more than one vote, and a very sure first one for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import exp

import numpy as np

from equipoise.base import Answer, Choice, Completion, Question
from equipoise.errors import UsageError, same_shape
from equipoise.infer.ballots import first_with, read_one
from equipoise.infer.checks import check_count, check_share, check_word
from equipoise.infer.metered import Metered
from equipoise.infer.stopping import beta_posterior
from equipoise.infer.weighted import NEEDS
from equipoise.infer.weights import Missing, confidence_of, note_missing, with_logprobs
from equipoise.measures.trace_confidence import Rule
from equipoise.measures.votes import Votes, tally_votes


@dataclass(frozen=True, slots=True)
class ReASC:
    """Votes until 1 − I_½(s₁ + 1, s₂ + 1) ≥ threshold, s an answer's sum of max(1, e^{λz}), z the standardised confidence.

    https://arxiv.org/abs/2601.02970. A first completion with a confidence of `gate` or more is the answer at once; the gate is to
    be found on questions with known answers (`calibrate_gate`), and there is none by default. z is taken with `centre` and
    `spread`, or, where these are None, with the mean and deviation of the question's own completions so far. λ = 0 is
    Adaptive-Consistency.
    """

    threshold: float = 0.95
    cap: int = 16
    sharpness: float = 0.7  # λ
    gate: float | None = None
    centre: float | None = None
    spread: float | None = None
    rule: Rule = "bottom"
    window: int = 2048
    k: int = 20
    missing: Missing = "error"

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold)
        check_count("cap", self.cap)
        check_count("window", self.window)
        check_word("rule", self.rule, Rule)
        check_word("fallback", self.missing, Missing)
        if self.sharpness < 0 or (self.spread is not None and self.spread <= 0):
            raise UsageError(f"sharpness={self.sharpness} is 0 or more, and spread={self.spread} is above 0")

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        answers: list[Answer | None] = []
        sure: list[float | None] = []
        drawn: list[Completion] = []
        stopped_by = "finished"
        async with metered.draw(question, n=self.cap, at_once=1, how=with_logprobs(question.how, self.k)) as draw:
            async for place, completion in draw.finished():
                drawn.append(completion)
                answers.append(read_one(question, completion))
                sure.append(confidence_of(completion, self.rule, window=self.window))
                if place in draw.short:
                    continue
                if place == 0 and self._passes(answers[0], sure[0]):
                    stopped_by = "confidence"
                    break
                first, second, *_ = *nlargest(2, self._tally(answers, sure, question.seed).counts.values()), 0.0, 0.0
                if beta_posterior(first, second) >= self.threshold:
                    stopped_by = "consensus"
                    break
        votes = self._tally(answers, sure, question.seed)
        return metered.choice(
            votes.winner,
            drawn,
            votes,
            stopped_by="budget" if draw.out_of_budget and stopped_by == "finished" else stopped_by,
            chosen=first_with(votes.winner, answers, drawn),
            notes=note_missing(answers, sure, missing=self.missing, needs=NEEDS["confidence"]),
        )

    def _passes(self, answer: Answer | None, confidence: float | None) -> bool:
        return self.gate is not None and answer is not None and confidence is not None and confidence >= self.gate

    def _tally(self, answers: Sequence[Answer | None], sure: Sequence[float | None], seed: int) -> Votes:
        if note_missing(answers, sure, missing=self.missing, needs=NEEDS["confidence"]):
            return tally_votes(answers, seed=seed)
        ballots = [i for i, answer in enumerate(answers) if answer is not None]
        counts = soft_counts(
            [float(sure[i] or 0.0) for i in ballots], sharpness=self.sharpness, centre=self.centre, spread=self.spread
        )
        weights = dict(zip(ballots, counts, strict=True))
        return tally_votes(answers, [weights.get(i, 0.0) for i in range(len(answers))], seed=seed)


def soft_counts(
    confidences: Sequence[float], *, sharpness: float, centre: float | None = None, spread: float | None = None
) -> list[float]:
    """max(1, e^{λz}): a completion below the mean is one vote, a surer one more. z is 0 where all are equally sure."""
    if not confidences:
        return []
    middle = float(np.mean(confidences)) if centre is None else centre
    width = float(np.std(confidences)) if spread is None else spread
    if width <= 0:
        return [1.0] * len(confidences)
    return [max(1.0, exp(sharpness * (confidence - middle) / width)) for confidence in confidences]


def calibrate_gate(confidence_Q: Sequence[float], correct_Q: Sequence[bool], *, target: float = 0.9) -> float | None:
    """The lowest confidence from which on single completions were right at least `target` of the time; None: none is.

    The paper takes 128 labelled questions.
    """
    confidence, correct = np.asarray(confidence_Q, float), np.asarray(correct_Q, float)
    same_shape(confidence=confidence, correct=correct)
    check_share("target", target)
    order = np.argsort(-confidence, kind="stable")
    ordered = confidence[order]
    right = np.cumsum(correct[order]) / np.arange(1, len(order) + 1)
    last_of_value = np.append(ordered[1:] != ordered[:-1], True) if len(order) else np.empty(0, bool)
    passing = np.flatnonzero(last_of_value & (right >= target))
    return float(ordered[passing[-1]]) if len(passing) else None
