"""The completion that scores best of n, by a verifier, by its own confidence, or by a model that rates each one alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from equipoise.base import Answer, Choice, Completion, Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.ballots import elect, read_answers
from equipoise.infer.checks import check_count, check_word
from equipoise.infer.metered import Metered
from equipoise.infer.prompts import RATE, fence, fill, show_prompt, start_afresh
from equipoise.infer.together import together
from equipoise.infer.weighted import NEEDS
from equipoise.infer.weights import (
    Missing,
    as_they_are,
    confidence_of,
    judge_scores,
    need_judge,
    over_ballots,
    with_logprobs,
)
from equipoise.measures.trace_confidence import Rule
from equipoise.measures.votes import Votes, tally_votes

Scored = Literal["judge", "confidence", "model"]
HIGHEST = 10.0  # rating

_RATING = re.compile(r"rating\s*[:=]?[\s*`]*(-?\d+(?:\.\d+)?)(?![\w%]|[.,]\d)", re.IGNORECASE)
_BARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:/\s*10\s*)?\.?\s*")


@dataclass(frozen=True, slots=True)
class BestOfN:
    """argmax_i r(y_i) over n completions that hold an answer (https://arxiv.org/abs/2110.14168); equal scores vote.

    r is the reward or verdict of the question's judge, the trace's confidence, or a rating by the model itself, in the judge
    line: a conversation of its own for every candidate, so that none is rated in the light of another. `vote` sums the
    scores by answer instead (best-of-N weighted, https://arxiv.org/abs/2206.02336).
    """

    n: int = 16
    by: Scored = "judge"
    vote: bool = False
    rule: Rule = "mean"
    window: int = 2048
    k: int = 20
    missing: Missing = "error"  # where no candidate has a score
    judge_tokens: int = 256  # for one rating
    template: str = RATE

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_count("judge_tokens", self.judge_tokens)
        check_word("score", self.by, Scored)
        check_word("rule", self.rule, Rule)
        check_word("fallback", self.missing, Missing)
        fill(self.template, question="", reply="")

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        if self.by == "judge" and question.judge is None:
            raise need_judge("scores by judge", question)
        how = with_logprobs(question.how, self.k) if self.by == "confidence" else question.how
        draw = metered.draw(question, n=self.n, how=how, keep=self.judge_tokens if self.by == "model" else 0)
        drawn = await draw.completions()
        answers = read_answers(question, drawn)
        scores, cut_short = await self._score(question, metered, answers, drawn)
        out = draw.out_of_budget or cut_short
        scored = [a if s is not None else None for a, s in zip(answers, scores, strict=True)]
        notes = self._notes(answers, scored)
        if not any(scored) or (self.vote and not any(scores)):
            told = notes or (("every score is 0: counted as a plain vote",) if any(answers) else ())
            return elect(question, metered, drawn, answers, out_of_budget=out, notes=told)
        if self.vote:
            votes = tally_votes(scored, over_ballots(scored, scores, as_they_are), seed=question.seed)
        else:
            votes = pick_best(scored, scores, seed=question.seed)
        return crown(metered, votes, drawn, scored, scores, out_of_budget=out, notes=notes)

    async def _score(
        self, question: Question, metered: Metered, answers: Sequence[Answer | None], drawn: Sequence[Completion]
    ) -> tuple[list[float | None], bool]:
        """A score for each candidate, None where it has none, and whether a rating could no longer be asked for."""
        if self.by == "judge":
            return judge_scores(question, answers, drawn), False
        if self.by == "confidence":
            return [confidence_of(completion, self.rule, window=self.window) for completion in drawn], False
        how = Sampling(max_tokens=self.judge_tokens, temperature=0.0, extra=question.how.extra)
        asked = fence("question", show_prompt(question.prompt))
        draws = {}
        for i, (answer, completion) in enumerate(zip(answers, drawn, strict=True)):
            if answer is not None:
                request = fill(self.template, question=asked, reply=fence("reply", completion.text or ""))
                prompt = start_afresh(question.prompt, request)
                draws[i] = metered.draw(question, kind="judge", prompt=prompt, how=how)
        replies = await together(each.completions() for each in draws.values())
        scores: list[float | None] = [None] * len(drawn)
        for i, reply in zip(draws, replies, strict=True):
            whole = reply and reply[0].finish != "error"
            scores[i] = read_rating(reply[0].text or "") if whole else None
        return scores, any(each.out_of_budget for each in draws.values())

    def _notes(self, answers: Sequence[Answer | None], scored: Sequence[Answer | None]) -> tuple[str, ...]:
        candidates = len(answers) - list(answers).count(None)
        lacking = candidates - (len(scored) - list(scored).count(None))
        if not lacking:
            return ()
        why = "no rating came that could be read" if self.by == "model" else NEEDS[self.by]
        told = f"{lacking} of {candidates} candidates have no score: {why}"
        if lacking < candidates:
            return (told,)
        # A judge that is a model has cost tokens by now, and is not to be foreseen: its silence is no error.
        if self.missing == "error" and self.by != "model":
            raise UsageError(f"{told}; or use missing=majority for a plain vote")
        return (f"{told}; counted as a plain vote",)


def pick_best(answers: Sequence[Answer | None], scores: Sequence[float | None], *, seed: int) -> Votes:
    """The answer with the highest score, the most common one of those where several have it; each answer's best as count."""
    best: dict[str, float] = {}
    for answer, score in zip(answers, scores, strict=True):
        if answer is not None and score is not None:
            best[answer.text] = max(score, best.get(answer.text, score))
    top = max(best.values(), default=None)
    leaders = tally_votes((a if s == top else None for a, s in zip(answers, scores, strict=True)), seed=seed)
    return Votes(leaders.winner, best, list(answers).count(None), leaders.tied)


def read_rating(text: str) -> float | None:
    """The last `Rating: N` of a reply, or a reply that is nothing but a number. None: there is none from 0 to 10."""
    stated = _RATING.findall(text)
    bare = _BARE.fullmatch(text)
    if not stated and bare is None:
        return None
    rating = float(stated[-1] if stated else bare[1])  # type: ignore[index]
    return rating if 0 <= rating <= HIGHEST else None


def crown(
    metered: Metered,
    votes: Votes,
    drawn: Sequence[Completion],
    answers: Sequence[Answer | None],
    scores: Sequence[float | None],
    *,
    out_of_budget: bool,
    notes: Sequence[str] = (),
) -> Choice:
    """The winner of these votes, with the best of the completions that gave it."""
    chosen = best_with(votes.winner, answers, scores, drawn)
    stopped_by = "budget" if out_of_budget else "finished"
    return metered.choice(votes.winner, drawn, votes, stopped_by=stopped_by, chosen=chosen, notes=notes)


def best_with(
    winner: Answer | None,
    answers: Sequence[Answer | None],
    scores: Sequence[float | None],
    drawn: Sequence[Completion],
) -> Completion | None:
    """The best of the completions that gave the winning answer."""
    if winner is None:
        return None
    rows = zip(answers, scores, drawn, strict=True)
    own = [(s, c) for a, s, c in rows if a is not None and s is not None and a.text == winner.text]
    return max(own, key=lambda row: row[0])[1]
