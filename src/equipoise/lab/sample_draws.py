"""Completions of many problems: in large batches from a model in this process, side by side from any other sampler."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from equipoise.base import Chunk, Completion, Finish, Problem, Question, Sampler
from equipoise.infer.metered import GIVEN_UP, join_chunks

if TYPE_CHECKING:
    from equipoise.models.loaders import Loaded


@dataclass(frozen=True, slots=True)
class Job:
    """Completions that are still to be drawn: those of these numbers, of one problem with one budget."""

    problem: Problem
    question: Question
    budget: int | None
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Got:
    """What came of a job: completions by number, with how many of their tokens were thinking, where somebody said."""

    job: Job
    completions: dict[int, Completion]
    n_thinking: dict[int, int | None]


# --- a model in this process -----------------------------------------------------------------------------------------------


def draw_batches(loaded: Loaded, jobs: Sequence[Job], *, samples: int, rows: int) -> Iterator[list[Got]]:
    """About `rows` completions at once; which are drawn together changes none of them."""
    from equipoise.models.generate import generate
    from equipoise.models.samples import part_samples, read_completions
    from equipoise.models.thinking import marks_of
    from equipoise.samplers.in_process import TokenConfidences, cap_for, decoding_of, model_for, room_for

    if not jobs:
        return
    model, tokens = model_for(loaded.model, jobs[0].question.how), loaded.tokens  # alpha is one for all
    marks, device = marks_of(tokens), model.head.weight_VD.device
    prompts = {job.problem.id: tokens.encode(job.question.prompt) for job in jobs}
    rooms = [room_for(model, prompts[job.problem.id], job.question.how) for job in jobs]
    for batch, room in _alike(jobs, rooms, max(1, rows // samples)):
        how = batch[0].question.how
        sure = TokenConfidences(model, how.top_logprobs) if how.top_logprobs else None
        asked = [prompts[job.problem.id] for job in batch]
        drawn = generate(
            model,
            asked,
            seeds=[job.question.seed for job in batch],
            samples=samples,
            max_tokens=room,
            pad=tokens.pad,
            stop=tokens.stop,
            decoding=decoding_of(how),
            watch=sure,
            cap=cap_for(marks, how, [prompt for prompt in asked for _ in range(samples)], device=device),
        )
        completions = read_completions(drawn, tokens)
        thought = [
            None if part is None or part.thinking is None else len(part.thinking)
            for part in part_samples(drawn, tokens)
        ]
        if sure is not None:
            completions = [
                replace(c, token_confidences=array("f", sure.of(row, slice(0, c.n_tokens))))
                for row, c in enumerate(completions)
            ]
        yield [
            Got(
                job,
                {i: completions[place * samples + i] for i in job.numbers},
                {i: thought[place * samples + i] for i in job.numbers},
            )
            for place, job in enumerate(batch)
        ]


def _alike(jobs: Sequence[Job], rooms: Sequence[int], most: int) -> Iterator[tuple[list[Job], int]]:
    """Batches of one budget and one limit: a long prompt beside them must not shorten the others' completions."""
    keys = [(job.budget, room) for job, room in zip(jobs, rooms, strict=True)]
    for key in dict.fromkeys(keys):
        mine = [job for job, its in zip(jobs, keys, strict=True) if its == key]
        yield from ((mine[first : first + most], key[1]) for first in range(0, len(mine), most))


# --- any sampler -----------------------------------------------------------------------------------------------------------


class Served:
    """Jobs drawn side by side. `stop` ends what is under way and starts nothing more."""

    def __init__(self, sampler: Sampler, *, at_once: int) -> None:
        self._sampler, self._room, self._telling = sampler, asyncio.Semaphore(at_once), asyncio.Lock()
        self._draws: set[Any] = set()
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        for draw, n in tuple(self._draws):
            for index in range(n):
                draw.cancel(index, "cancelled")

    async def run(self, jobs: Sequence[Job], done: Callable[[Got], None]) -> None:
        """`done` is called with every job as it ends. What failed or was given up is left out, to be drawn another time."""
        try:
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    await self._room.acquire()
                    if self.stopped:
                        break
                    group.create_task(self._one(job, done))
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None
        finally:
            close = getattr(self._sampler, "close", None)
            if close is not None:
                await close()

    async def _one(self, job: Job, done: Callable[[Got], None]) -> None:
        got = Got(job, {}, {})
        try:
            for numbers in _runs(job.numbers):
                if not self.stopped:
                    await self._draw(job, numbers, got)
        finally:
            self._room.release()
        async with self._telling:  # in a thread: a checker may take seconds, and the other streams must not wait for it
            await asyncio.to_thread(done, got)

    async def _draw(self, job: Job, numbers: range, got: Got) -> None:
        question, n = job.question, len(numbers)
        draw = self._sampler.draw(question.prompt, question.how, n=n, seed=question.seed, first=numbers.start)
        parts: list[list[Chunk]] = [[] for _ in numbers]
        self._draws.add((draw, n))
        try:
            async for chunk in draw:
                if chunk.restart:
                    parts[chunk.index].clear()
                parts[chunk.index].append(chunk)
                await asyncio.sleep(0)  # a sampler that never waits must not keep Ctrl-C waiting
        finally:
            self._draws.discard((draw, n))
        for number, pieces in zip(numbers, parts, strict=True):
            finish: Finish | None = pieces[-1].finish
            if finish not in (*GIVEN_UP, "error"):
                thinking = sum(piece.n_thinking for piece in pieces)
                got.completions[number] = join_chunks(pieces, finish)
                got.n_thinking[number] = thinking if thinking or any(p.thinking for p in pieces) else None


def _runs(numbers: Sequence[int]) -> Iterator[range]:
    """Numbers that follow each other are one draw."""
    start = last = None
    for number in sorted(numbers):
        if last is not None and number == last + 1:
            last = number
            continue
        if start is not None and last is not None:
            yield range(start, last + 1)
        start = last = number
    if start is not None and last is not None:
        yield range(start, last + 1)
