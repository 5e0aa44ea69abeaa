"""CISC: a vote weighted by the softmax of the confidences within one question (https://arxiv.org/abs/2502.06233)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from equipoise.base import Answer, Choice, Completion, Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.ballots import elect, read_answers
from equipoise.infer.checks import check_count, check_word
from equipoise.infer.metered import GIVEN_UP, Metered, MeteredDraw
from equipoise.infer.prompts import P_TRUE, extend, follow_up
from equipoise.infer.together import together
from equipoise.infer.weighted import NEEDS
from equipoise.infer.weights import (
    Missing,
    confidence_of,
    note_missing,
    over_ballots,
    with_logprobs,
)
from equipoise.measures.trace_confidence import Rule

Asked = Literal["p_true", "confidence"]
_NEEDS_P_TRUE = (
    "the confidence question needs the log-prob of a reply '1' or '0' (a sampler that tells log-probs; a thinking model needs "
    "a cue that ends its thinking)"
)


@dataclass(frozen=True, slots=True)
class CISC:
    """w_i = exp(c_i / T) / Σ_j exp(c_j / T) over the ballots of the question, then a weighted vote.

    c_i is P(True), the probability that the model, asked whether its reply is correct, says 1: one more token for each
    ballot, in the probe line. Or it is the confidence of the trace, which costs nothing.
    """

    n: int = 10
    by: Asked = "p_true"
    weight_temperature: float = 1.0  # T: the paper tunes it on held-out questions
    rule: Rule = "mean"  # of the confidence of the trace
    window: int = 2048
    k: int = 20
    missing: Missing = "error"
    cue: str | None = None  # what the reply to the confidence question is begun with
    ask: str = P_TRUE

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_word("confidence", self.by, Asked)
        check_word("rule", self.rule, Rule)
        check_word("fallback", self.missing, Missing)
        if not self.weight_temperature > 0:
            raise UsageError(
                f"weight_temperature is above 0, found {self.weight_temperature}: near 0 the surest reply decides, far "
                "above the majority"
            )

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        asks = self.by == "p_true"
        how = question.how if asks else with_logprobs(question.how, self.k)
        draw = metered.draw(question, n=self.n, how=how, keep=1 if asks else 0)
        drawn, out = await draw.completions(), draw.out_of_budget
        answers = read_answers(question, drawn)
        # What the model says, a failed request or the end of the budget is no mistake of the caller's: a plain vote is held.
        missing: Missing = "majority" if asks else self.missing
        if asks:
            probes = await self._ask_all(question, metered, answers, drawn)
            found = [p_true(probe.reply) if probe.reply is not None else None for probe in probes]
            out = out or any(probe.out_of_budget for probe in probes)
            if any(probe.reply is not None and not probe.reply.logprobs for probe in probes):
                missing = self.missing
        else:
            found = [confidence_of(completion, self.rule, window=self.window) for completion in drawn]
        needs = _NEEDS_P_TRUE if asks else NEEDS["confidence"]
        notes = note_missing(answers, found, missing=missing, needs=needs)
        weigh = partial(softmax_weights, temperature=self.weight_temperature)
        weights = None if notes else over_ballots(answers, found, weigh)
        return elect(question, metered, drawn, answers, weights, out_of_budget=out, notes=notes)

    async def _ask_all(
        self, question: Question, metered: Metered, answers: Sequence[Answer | None], drawn: Sequence[Completion]
    ) -> list[Probe]:
        """What was said to the confidence question about every ballot; what abstains is not asked about."""
        # At temperature 1: the log-probs of a greedy choice may be those of the sharpened distribution.
        how = Sampling(max_tokens=1, temperature=1.0, top_logprobs=self.k, extra=question.how.extra)
        draws: dict[int, MeteredDraw] = {}
        for i, (answer, completion) in enumerate(zip(answers, drawn, strict=True)):
            if answer is not None:
                prompt = follow_up(question.prompt, completion.text or "", self.ask)
                prompt = prompt if self.cue is None else extend(prompt, self.cue)
                draws[i] = metered.draw(question, kind="probe", prompt=prompt, how=how)
        replies = await together(draw.completions() for draw in draws.values())
        probes = [Probe()] * len(drawn)
        for (i, draw), reply in zip(draws.items(), replies, strict=True):
            said = [completion for completion in reply if completion.finish not in (*GIVEN_UP, "error")]
            probes[i] = Probe(said[0] if said else None, draw.out_of_budget)
        return probes


@dataclass(frozen=True, slots=True)
class Probe:
    """The reply to a confidence question; None where none was asked, none came or no tokens were left."""

    reply: Completion | None = None
    out_of_budget: bool = False


def p_true(reply: Completion) -> float | None:
    """The probability of "1" from a reply of one token, by its log-prob, or 1 − that of "0" where it says 0.

    Exact but for the mass on other tokens, which the second case counts as "1". None: another reply, or no log-probs.
    """
    said = (reply.token_texts[0] if reply.token_texts else f"{reply.thinking or ''}{reply.text or ''}").strip()
    if not reply.logprobs or said not in ("0", "1"):
        return None
    probability = math.exp(reply.logprobs[0])
    return probability if said == "1" else 1 - probability


def softmax_weights(confidences: Sequence[float], *, temperature: float) -> list[float]:
    """Sum to 1. As T grows all become equal; as it goes to 0 the most confident takes all."""
    if not confidences:
        return []
    surest = np.asarray(confidences, dtype=float) - max(confidences)
    weights = np.exp(surest / temperature)
    shares: list[float] = (weights / weights.sum()).tolist()
    return shares
