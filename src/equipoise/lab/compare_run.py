"""Strategies on every question of a pool: what each answered, and what it spent. Axes: P problems, R repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from equipoise.base import Choice, Completion, Draw, Prompt, Question, Sampler, Sampling
from equipoise.infer.ballots import read_answers
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.together import together
from equipoise.lab.open_model import open_sampler
from equipoise.measures.votes import tally_votes
from equipoise.tasks.asking import ask, default_split, find_task_or_file, posed_as_chat
from equipoise.tasks.task import AtMost

Strategy = Callable[[Question, Metered], Awaitable[Choice]]
Tick = Callable[[int, int], None]  # questions answered, of how many


class Pool(Protocol):
    """Questions, and a sampler that answers them. One seed gives every strategy the same completions in the same order."""

    def questions(self, *, seed: int) -> Sequence[Question]: ...

    def draw(self, prompt: Prompt, how: Sampling, *, n: int, seed: int, first: int = 0) -> Draw: ...


@dataclass(frozen=True, slots=True)
class Live:
    """A model as a pool: the same problems for every seed, and completions drawn anew."""

    name: str
    sampler: Sampler
    ask: Callable[[int], Sequence[Question]]

    def questions(self, *, seed: int) -> Sequence[Question]:
        return self.ask(seed)

    def draw(self, prompt: Prompt, how: Sampling, *, n: int, seed: int, first: int = 0) -> Draw:
        return self.sampler.draw(prompt, how, n=n, seed=seed, first=first)


def live_pool(
    task: str,
    model: str | Path | Sampler,
    *,
    problems: int = AtMost(20),
    split: str | None = None,
    max_tokens: int | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    decoding: Mapping[str, Any] = {},
    seed: int = 0,
    served: str | None = None,
    device: str = "cpu",
) -> Live:
    """Problems of a task or a problem file, for a model to answer: those that `sample` and `solve` pose with this seed."""
    posing, opened = find_task_or_file(task), open_sampler(model, served=served, device=device)
    longest = opened.max_tokens if max_tokens is None else max_tokens
    how = Sampling(max_tokens=longest, temperature=temperature, top_p=top_p, extra=dict(decoding))
    drawn = posing.problems(("sample", seed), problems, split=split or default_split(posing))
    posed = [posed_as_chat(problem) if opened.chat else problem for problem in drawn]
    return Live(
        f"{opened.title} on {task}", opened.sampler, lambda seed: [ask(posing, each, how, seed=seed) for each in posed]
    )


@dataclass(frozen=True, slots=True)
class Ran:
    """One strategy on one question in one repeat."""

    strategy: str
    question: str
    repeat: int
    answer: str | None
    correct: bool | None  # None: no verdict on that answer; False also where there was no answer
    tokens: int  # all that were generated, those of cancelled completions included
    samples: int
    abstained: int  # samples without an answer
    tied: bool
    stopped_by: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"notes": list(self.notes)}


@dataclass(frozen=True, slots=True)
class Whole:
    """All recorded samples of a question: how many gave each answer, and the share of those that was judged right."""

    counts: Mapping[str, int]
    right: Mapping[str, float | None]  # None: no sample with that answer has a verdict
    abstained: int
    leaders: frozenset[str]  # empty: no sample has an answer
    tokens: int

    @property
    def samples(self) -> int:
        return sum(self.counts.values()) + self.abstained


def repeat_seeds(seed: int, repeats: int) -> list[int]:
    """Seeds of the repeats. Those of two comparisons share none, and more repeats keep the first."""
    return [
        int(np.random.SeedSequence([seed, repeat]).generate_state(1, np.uint64)[0] >> 1) for repeat in range(repeats)
    ]


async def run_strategy(
    name: str,
    strategy: Strategy,
    pool: Pool,
    questions: Sequence[Question],
    *,
    repeat: int,
    budget: int | None,
    at_once: int,
) -> list[Ran]:
    """One strategy on every question, `at_once` of them at a time, each with a ledger of its own."""
    room = asyncio.Semaphore(at_once)

    async def answer(question: Question) -> Ran:
        async with room:
            choice = await strategy(question, Metered(pool, Ledger(budget)))
        return Ran(
            name,
            question.id,
            repeat,
            None if choice.answer is None else choice.answer.text,
            verdict(question, choice),
            choice.spent.generated,
            len(choice.drawn),
            choice.abstained,
            bool(choice.tied),
            choice.stopped_by,
            choice.notes,
        )

    return await together(answer(question) for question in questions)


def verdict(question: Question, choice: Choice) -> bool | None:
    """Whether the answer is right. No answer is not right, as in maj@k; None where nobody judged it."""
    if choice.answer is None:
        return False
    chosen = choice.chosen or _with_answer(question, choice)
    if chosen is None:
        return None
    if chosen.grade is not None:
        return chosen.grade.correct
    return None if question.judge is None else question.judge(chosen).correct


def _with_answer(question: Question, choice: Choice) -> Completion | None:
    """A completion that gave the answer, where the strategy names none."""
    assert choice.answer is not None
    answers = zip(read_answers(question, choice.drawn), choice.drawn, strict=True)
    return next((c for a, c in answers if a is not None and a.text == choice.answer.text), None)


async def read_whole(pool: Pool, question: Question, size: int) -> Whole:
    """Every recorded sample of a question, counted."""
    drawn = await Metered(pool, Ledger()).draw(question, n=size).completions()
    answers = read_answers(question, drawn)
    votes = tally_votes(answers)
    judged: dict[str, list[bool]] = {text: [] for text in votes.counts}
    for answer, completion in zip(answers, drawn, strict=True):
        grade = (
            completion.grade if completion.grade is not None or question.judge is None else question.judge(completion)
        )
        if answer is not None and grade is not None and grade.correct is not None:
            judged[answer.text].append(grade.correct)
    leaders = votes.tied or (() if votes.winner is None else (votes.winner.text,))
    return Whole(
        counts={text: int(count) for text, count in votes.counts.items()},
        right={text: sum(each) / len(each) if each else None for text, each in judged.items()},
        abstained=votes.abstained,
        leaders=frozenset(leaders),
        tokens=sum(completion.n_tokens or 0 for completion in drawn),
    )


def counted(notes: Sequence[tuple[str, ...]]) -> list[str]:
    """Notes of many questions: each kind once, by its first example, with how often it came. A kind ends at the first colon."""
    kinds: dict[str, list[str]] = {}
    for note in (note for each in notes for note in each):
        kinds.setdefault(note.partition(":")[0], []).append(note)
    return [some[0] if len(some) == 1 else f"{some[0]} ({len(some):,} times)" for some in kinds.values()]
