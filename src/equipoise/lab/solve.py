"""One strategy on one question, or on many problems, each with a hard token budget and all with another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.base import Choice, Completion, Problem, Question, Rollout, Sampler, Sampling
from equipoise.catalogue.build import build, read_spec
from equipoise.catalogue.table import find_method, is_built, methods
from equipoise.errors import UsageError
from equipoise.infer.ballots import read_answers
from equipoise.infer.ledger import Ledger, Prices
from equipoise.infer.metered import Metered
from equipoise.lab.interrupting import run_to_end
from equipoise.lab.open_model import Opened, open_sampler
from equipoise.lab.solve_record import Answered, Solved, Strategy, accuracy_of, open_writer, rollouts_of, tokens_of
from equipoise.rollouts.writer import RunWriter
from equipoise.tasks.asking import ask, ask_text, default_split, find_task_or_file, posed_as_chat
from equipoise.tasks.task import AtMost
from equipoise.text.display import many

Say = Callable[[str], None]

STRATEGIES = ("strategy", "cap")  # kinds of the catalogue
FLUSH_ROWS = 1024  # completions of a part of the run folder


def solve(
    asked: str | Question,
    model: str | Path | Sampler,
    *,
    strategy: str | Strategy = "majority",
    budget: int | None = None,
    how: Sampling | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    served: str | None = None,
    device: str = "cpu",
    chat: bool | None = None,
    prices: Prices | None = None,
) -> Choice:
    """Answer one question, a text or a `Question`, with a strategy and at most `budget` generated tokens.

    `model`: see `open_sampler`; or a sampler, such as one of `connect`. `strategy`: a spec of the catalogue, as "majority:n=8", or
    the strategy itself. `how`, `seed`, `chat` are for a text: its sampling settings, and whether it is put as a user's message.
    `out`: a new run folder for the choice and all that was drawn. Ctrl-C ends what is under way, and what was found so far is
    the answer.
    """
    opened = open_sampler(model, served=served, device=device)
    if isinstance(asked, str):
        how = Sampling(max_tokens=opened.max_tokens) if how is None else how
        asked = ask_text(asked, how, seed=seed, chat=opened.chat if chat is None else chat)
    found = _solve([_Asked(asked)], opened, strategy, budget=budget, out=out, prices=prices)
    return found.answered[0].choice


def solve_all(
    questions: Sequence[Question],
    model: str | Path | Sampler,
    *,
    strategy: str | Strategy = "majority",
    budget: int | None = None,
    run_budget: int | None = None,
    at_once: int = 8,
    out: str | Path | None = None,
    served: str | None = None,
    device: str = "cpu",
    prices: Prices | None = None,
    say: Say = lambda line: None,
) -> Solved:
    """`solve` for many questions, `at_once` of them under way together: those of a recorded pool, say, with the pool as the model.

    `run_budget`: tokens of all questions together. After Ctrl-C no further one is asked.
    """
    return _solve(
        [_Asked(question) for question in questions],
        open_sampler(model, served=served, device=device),
        strategy,
        budget=budget,
        run_budget=run_budget,
        at_once=at_once,
        out=out,
        prices=prices,
        say=say,
    )


def solve_task(
    task: str,
    model: str | Path | Sampler,
    *,
    problems: int = AtMost(20),
    split: str | None = None,
    strategy: str | Strategy = "majority",
    budget: int | None = None,
    run_budget: int | None = None,
    max_tokens: int | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    decoding: Mapping[str, Any] = {},
    seed: int = 0,
    at_once: int = 8,
    out: str | Path | None = None,
    served: str | None = None,
    device: str = "cpu",
    chat: bool | None = None,
    prices: Prices | None = None,
    say: Say = lambda line: None,
) -> Solved:
    """`solve_all` for the problems of a task or a problem file; the task's checker says which answers are right."""
    posing = find_task_or_file(task)
    opened = open_sampler(model, served=served, device=device)
    chat = opened.chat if chat is None else chat
    how = Sampling(
        max_tokens=opened.max_tokens if max_tokens is None else max_tokens,
        temperature=temperature,
        top_p=top_p,
        extra=dict(decoding),
    )
    # The problems and seeds of `sample`: what a strategy draws here is what a pool of the same seed recorded.
    posed = [
        posed_as_chat(p) if chat else p
        for p in posing.problems(("sample", seed), problems, split=split or default_split(posing))
    ]
    questions = [_Asked(ask(posing, problem, how, seed=seed), problem) for problem in posed]
    return _solve(
        questions,
        opened,
        strategy,
        budget=budget,
        run_budget=run_budget,
        at_once=at_once,
        out=out,
        prices=prices,
        say=say,
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    question: Question
    problem: Problem | None = None


@dataclass(slots=True)
class _Session:
    """Everything that Ctrl-C has to reach."""

    opened: Opened
    strategy: Strategy
    name: str
    ledger: Ledger
    budget: int | None
    writer: RunWriter | None
    say: Say
    stopped: bool = False
    open: set[Metered] = field(default_factory=set)
    answered: dict[int, Answered] = field(default_factory=dict)
    held: list[Rollout] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def stop(self) -> None:
        self.stopped = True
        for metered in tuple(self.open):
            metered.stop()

    async def run(self, questions: Sequence[_Asked], *, at_once: int) -> None:
        room = asyncio.Semaphore(at_once)
        try:
            async with asyncio.TaskGroup() as group:
                for place, asked in enumerate(questions):
                    await room.acquire()
                    if self.stopped and place:
                        break
                    group.create_task(self._one(place, asked, room, len(questions)))
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None
        finally:
            self._flush()
            close = getattr(self.opened.sampler, "close", None)
            if close is not None:
                await close()

    async def _one(self, place: int, asked: _Asked, room: asyncio.Semaphore, n: int) -> None:
        metered = Metered(self.opened.sampler, Ledger(self.budget, within=self.ledger))
        self.open.add(metered)
        if self.stopped:
            metered.stop()
        try:
            choice = await self.strategy(asked.question, metered)
        finally:
            self.open.discard(metered)
            room.release()
        # In a thread: a checker may take seconds, and the other questions must not wait for it.
        one, rollouts = await asyncio.to_thread(self._grade, asked, choice)
        self.answered[place] = one
        done = len(self.answered)
        left = (time.monotonic() - self.began) / done * (n - done)
        if n > 1:
            self.say(
                f"{done} of {many(n, 'question')}, {many(self.ledger.spent.generated, 'token')}, {left:,.0f} s left"
            )
        if self.writer is not None:
            line = {
                "prompt_id": asked.question.id,
                "strategy": self.name,
                "budget": self.budget,
                "correct": one.correct,
            }
            self.writer.choose(line | choice.to_dict())
            self.held += rollouts
            if len(self.held) >= FLUSH_ROWS:
                self._flush()

    def _grade(self, asked: _Asked, choice: Choice) -> tuple[Answered, list[Rollout]]:
        one = Answered(asked.question.id, choice, _verdict(asked.question, choice))
        if self.writer is None:
            return one, []
        problem = asked.problem or Problem(asked.question.id, None, asked.question.prompt)
        return one, rollouts_of(problem, asked.question, choice, self.writer.info, self.name, self.budget)

    def _flush(self) -> None:
        held, self.held = self.held, []
        if self.writer is not None and held:
            self.writer.write(held)


def _solve(
    questions: Sequence[_Asked],
    opened: Opened,
    strategy: str | Strategy,
    *,
    budget: int | None,
    out: str | Path | None,
    prices: Prices | None,
    run_budget: int | None = None,
    at_once: int = 1,
    say: Say = lambda line: None,
) -> Solved:
    if not questions:
        raise UsageError("there is no question: give one or more")
    if at_once < 1:
        raise UsageError(f"at_once is {at_once}: 1 question or more is under way")
    built = find_strategy(strategy) if isinstance(strategy, str) else strategy
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    writer = (
        None
        if out is None
        else open_writer(Path(out), opened, built, name, [one.question for one in questions], budget, run_budget)
    )
    session = _Session(opened, built, name, Ledger(run_budget, prices=prices), budget, writer, say)
    run_to_end(lambda: session.run(questions, at_once=at_once), stop=session.stop)
    answered = tuple(session.answered[place] for place in sorted(session.answered))
    return Solved(
        strategy=name,
        model=opened.title,
        answered=answered,
        asked=len(questions),
        spent=session.ledger.spent,
        accuracy=accuracy_of(answered),
        tokens=tokens_of(answered),
        folder=None if out is None else str(out),
        interrupted=session.stopped,
        warnings=() if writer is None else tuple(writer.warnings.lines()),
    )


def find_strategy(spec: str) -> Strategy:
    """The strategy that a spec names, "majority:n=8" or "module:name" of code outside the package."""
    name, _ = read_spec(spec)
    if ":" not in name and (kind := find_method(name).kind) not in STRATEGIES:
        known = ", ".join(method.name for method in methods() if method.kind in STRATEGIES and is_built(method))
        raise UsageError(f"'{spec}' is a {kind}, not a strategy: known are {known}")
    strategy: Strategy = build(spec)
    return strategy


def _verdict(question: Question, choice: Choice) -> bool | None:
    """No answer is not right; None where nobody can judge."""
    if question.judge is None:
        return None
    if choice.answer is None:
        return False
    chosen = choice.chosen or _that_said(question, choice)
    return None if chosen is None else question.judge(chosen).correct


def _that_said(question: Question, choice: Choice) -> Completion | None:
    assert choice.answer is not None
    pairs = zip(read_answers(question, choice.drawn), choice.drawn, strict=True)
    return next((c for answer, c in pairs if answer is not None and answer.text == choice.answer.text), None)
