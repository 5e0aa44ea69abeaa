"""A hard limit on thinking, and budget forcing: end it at the limit, or make it go on while tokens are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from equipoise.base import Choice, Completion, Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.ballots import elect, read_answers
from equipoise.infer.checks import check_count
from equipoise.infer.metered import Metered, MeteredDraw
from equipoise.infer.thoughts import Markers, Thought, collect
from equipoise.infer.together import together


@dataclass(frozen=True, slots=True)
class Capped:
    """One completion that thinks for at most `tokens` tokens; `answer` more are kept for what it says then.

    At the limit the end marker is appended and the answer drawn from there. `wait` times the end of the thinking is passed over
    and "Wait" appended instead, while thinking tokens are left once those made are taken off (budget forcing,
    https://arxiv.org/abs/2501.19393). 0 tokens: the end marker comes at once. What is appended costs prompt tokens only.
    `native` leaves the limit to the server, in one request (`Sampling.thinking_budget`).
    """

    tokens: int = 4096
    answer: int = 512
    wait: int = 0
    word: str = "Wait"
    start: str = "<think>"
    end: str = "</think>"
    cue: str | None = None  # said after a forced end, as "Final Answer:"
    native: bool = False

    def __post_init__(self) -> None:
        check_count("tokens", self.tokens, least=0)
        check_count("answer", self.answer)
        check_count("wait", self.wait, least=0)
        if not self.end:
            raise UsageError("thinking needs an end marker, found '': give end=</think> or that of the model")
        if self.native and self.wait:
            raise UsageError(
                f"native=True leaves the thinking to the server, which cannot wait={self.wait} times: use one of both"
            )

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        drawn, out, notes = await draw_capped(question, metered, self)
        return elect(question, metered, drawn, read_answers(question, drawn), out_of_budget=out, notes=notes)


class Drawn(NamedTuple):
    completions: list[Completion]
    out_of_budget: bool
    notes: tuple[str, ...] = ()


async def draw_capped(question: Question, metered: Metered, cap: Capped, *, n: int = 1) -> Drawn:
    """`n` completions under the cap, their thinking and their answers apart."""
    if cap.tokens + cap.answer > question.how.max_tokens:
        raise UsageError(
            f"{cap.tokens} tokens of thinking and {cap.answer} kept for the answer need max_tokens of "
            f"{cap.tokens + cap.answer}, found {question.how.max_tokens}: raise it, or lower the cap"
        )
    if cap.native:
        return await _draw_native(question, metered, cap, n)
    draws = _Draws(question, metered, cap.end)
    thoughts = await _think(draws, cap, n)
    open_ones = [thought for thought in thoughts if thought.alive and not thought.answered]
    for thought in open_ones:
        if not thought.closed:
            thought.force_end()
    await draws.answer(open_ones)
    short = [thought.waits for thought in thoughts if thought.parts and thought.alive and thought.waits < cap.wait]
    notes = (f"{cap.word} was said {min(short)} of {cap.wait} times: no thinking tokens were left",) if short else ()
    drawn = [thought.completion() for thought in thoughts if thought.parts]
    return Drawn(drawn, draws.out_of_budget, notes)


async def _think(draws: _Draws, cap: Capped, n: int) -> list[Thought]:
    markers = Markers(cap.start, cap.end, cap.cue)
    left = draws.metered.ledger.left
    if not cap.tokens or (left is not None and left <= cap.answer):
        return [Thought(markers) for _ in range(n)]
    thoughts = await draws.think_first(markers, n, tokens=cap.tokens, keep=cap.answer, stops_at_end=cap.wait > 0)
    for passed in range(cap.wait):
        # What was made is taken off before it is asked whether any is left, as upstream's correction has it.
        going = [t for t in thoughts if t.finish == "stop" and not t.answered and t.n_tokens < cap.tokens]
        for thought in going:
            thought.wait(cap.word)
        await draws.think_on(going, tokens=cap.tokens, keep=cap.answer, stops_at_end=passed + 1 < cap.wait)
    return thoughts


@dataclass(slots=True)
class _Draws:
    """The requests of these completions, a round at a time, so that their numbers do not depend on which is faster."""

    question: Question
    metered: Metered
    end: str
    out_of_budget: bool = False

    async def think_first(
        self, markers: Markers, n: int, *, tokens: int, keep: int, stops_at_end: bool
    ) -> list[Thought]:
        draw = self.metered.draw(self.question, n=n, how=self._how(tokens, stops_at_end), keep=keep)
        parts = await collect(draw, self.end, stops_at_end=stops_at_end)
        self.out_of_budget |= draw.out_of_budget
        thoughts = [Thought(markers) for _ in parts]
        for thought, part in zip(thoughts, parts, strict=True):
            thought.take(part, stops_at_end=stops_at_end)
        return thoughts

    async def think_on(self, thoughts: Sequence[Thought], *, tokens: int, keep: int, stops_at_end: bool) -> None:
        hows = [self._how(tokens - thought.n_tokens, stops_at_end) for thought in thoughts]
        draws = self._continue(thoughts, hows, keep=keep * len(thoughts))
        found = await together(collect(draw, self.end, stops_at_end=stops_at_end) for draw in draws)
        self._take(thoughts, draws, found, stops_at_end=stops_at_end)

    async def answer(self, thoughts: Sequence[Thought]) -> None:
        """All that `max_tokens` leaves is for the answer."""
        most = self.question.how.max_tokens
        going = [thought for thought in thoughts if thought.n_tokens < most]
        draws = self._continue(going, [self._how(most - thought.n_tokens, False) for thought in going])
        self._take(going, draws, await together(draw.completions() for draw in draws), stops_at_end=False)

    def _how(self, tokens: int, stops_at_end: bool) -> Sampling:
        how = self.question.how
        stop = (*how.stop, self.end) if stops_at_end else how.stop
        return replace(how, max_tokens=tokens, thinking_budget=None, stop=stop)

    def _continue(self, thoughts: Sequence[Thought], hows: Sequence[Sampling], *, keep: int = 0) -> list[MeteredDraw]:
        prompts = [thought.prompt(self.question.prompt) for thought in thoughts]
        rows = zip(prompts, hows, strict=True)
        return [self.metered.draw(self.question, prompt=prompt, how=how, keep=keep) for prompt, how in rows]

    def _take(
        self,
        thoughts: Sequence[Thought],
        draws: Sequence[MeteredDraw],
        found: Sequence[Sequence[Completion]],
        *,
        stops_at_end: bool,
    ) -> None:
        for thought, draw, parts in zip(thoughts, draws, found, strict=True):
            self.out_of_budget |= draw.out_of_budget
            for part in parts:
                thought.take(part, stops_at_end=stops_at_end)


async def _draw_native(question: Question, metered: Metered, cap: Capped, n: int) -> Drawn:
    draw = metered.draw(question, n=n, how=replace(question.how, thinking_budget=cap.tokens))
    thought: Counter[int] = Counter()
    async with draw:
        async for chunk in draw:
            thought[chunk.index] = (0 if chunk.restart else thought[chunk.index]) + chunk.n_thinking
    most = max(thought.values(), default=0)
    # Servers without the setting ignore it.
    over = (f"the backend thought for {most} tokens, its budget was {cap.tokens}",) if most > cap.tokens else ()
    return Drawn([draw.done[i] for i in sorted(draw.done)], draw.out_of_budget, over)
