"""Questions and scripted samplers for the tests of strategies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from equipoise.base import Answer, Choice, Completion, Grade, Prompt, Question, Sampling
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.population import Candidate, Island
from equipoise.samplers.scripted import Reply, Say, Scripted


def read(completion: Completion) -> Answer | None:
    """A text that is nothing but a number is the answer."""
    text = (completion.text or "").strip()
    return Answer(text) if text.isdigit() else None


def ask(max_tokens: int = 100, *, prompt: Prompt = "2+2=", judge: Callable[[Completion], Grade] | None = None, seed=0):
    return Question("q", prompt, read, Sampling(max_tokens=max_tokens), judge=judge, seed=seed)


def solve(
    strategy,
    replies: Sequence[Reply | str] | Say,
    question: Question | None = None,
    *,
    budget: int | None = None,
    **more,
) -> tuple[Choice, Scripted]:
    """What a strategy answers, and the sampler that it asked."""
    sampler = Scripted(replies, **more)
    return asyncio.run(strategy(question or ask(), Metered(sampler, Ledger(budget)))), sampler


def sure(text: str, confidence: float) -> Reply:
    """A reply all of whose tokens have one confidence."""
    return Reply(text, confidences=[confidence] * len(text))


def graded(**rewards: float | None) -> Callable[[Completion], Grade]:
    """A judge that knows the reward of each text: `graded(_4=1.0)`."""

    def judge(completion: Completion) -> Grade:
        return Grade(read(completion), None, rewards.get(f"_{completion.text}"))

    return judge


def with_how(question: Question, **changes) -> Question:
    return replace(question, how=replace(question.how, **changes))


def candidate(text: str, score: float) -> Candidate:
    """A solution of a population, with this score."""
    return Candidate(Completion(text), Answer(text), Grade(Answer(text), "wrong", score), score)


def island(**scores: float) -> Island:
    return Island({text: candidate(text, score) for text, score in scores.items()})
