"""A sampler that keeps a thinking budget by itself: it ends the thinking at the limit and draws the answer from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import blake2b

from equipoise.base import Chunk, Draw, Finish, Prompt, Question, Sampler, Sampling
from equipoise.errors import UsageError
from equipoise.infer.capped import Capped, draw_capped
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered


class Named:
    """A sampler with the name that the record gives it."""

    def __init__(self, sampler: Sampler, *, name: str) -> None:
        self.name, self._sampler = name, sampler

    def draw(self, prompt: Prompt, how: Sampling, *, n: int, seed: int, first: int = 0) -> Draw:
        return self._sampler.draw(prompt, how, n=n, seed=seed, first=first)

    async def close(self) -> None:
        close = getattr(self._sampler, "close", None)
        if close is not None:
            await close()


class Forcing(Named):
    """`thinking_budget` held from outside, as the strategy `cap` does it, for backends that have none of their own.

    Sample i of a seed has a seed of its own, so it is the same whichever draw it comes from. A completion comes in one piece.
    """

    def __init__(
        self, sampler: Sampler, *, name: str, start: str = "<think>", end: str = "</think>", cue: str | None = None
    ) -> None:
        super().__init__(sampler, name=name)
        self._start, self._end, self._cue = start, end, cue
        usual = Capped()
        marks = (("start", start, usual.start), ("end", end, usual.end), ("cue", cue, usual.cue))
        # What a spec must say for a strategy to do the same.
        self.unusual = tuple((field, value) for field, value, mine in marks if value is not None and value != mine)
        for field, value in self.unusual:
            if "," in value or value != value.strip() or not value:
                raise UsageError(
                    f"the {field} {value!r} is empty, has a comma or begins or ends with a space, and no strategy's spec can hold it: use another"
                )

    def draw(self, prompt: Prompt, how: Sampling, *, n: int, seed: int, first: int = 0) -> Draw:
        if how.thinking_budget is None:
            return super().draw(prompt, how, n=n, seed=seed, first=first)
        return _ForcedDraw(self, prompt, how, [_own_seed(seed, first + i) for i in range(n)])

    async def one(self, prompt: Prompt, how: Sampling, seed: int, metered: Metered) -> Chunk:
        tokens = how.thinking_budget or 0
        cap = Capped(tokens, how.max_tokens - tokens, start=self._start, end=self._end, cue=self._cue)
        question = Question("", prompt, lambda completion: None, replace(how, thinking_budget=None), seed=seed)
        drawn, _, _ = await draw_capped(question, metered, cap)
        if not drawn:
            return Chunk(0, finish="cancelled")
        (made,) = drawn
        error = next(iter(metered.notes), None) if made.finish == "error" else None
        return Chunk(
            0,
            text=made.text or "",
            thinking=made.thinking or "",
            n_tokens=metered.ledger.spent.generated,
            n_thinking=metered.ledger.spent.thinking,
            token_ids=made.token_ids,
            token_texts=made.token_texts,
            logprobs=made.logprobs,
            entropies=made.entropies,
            token_confidences=made.token_confidences,
            finish=made.finish,
            error=error,
        )

    def metered(self) -> Metered:
        return Metered(self._sampler, Ledger())


class _ForcedDraw:
    """Completions side by side, each handed on when it is whole."""

    def __init__(self, sampler: Forcing, prompt: Prompt, how: Sampling, seeds: list[int]) -> None:
        self._sampler, self._prompt, self._how, self._seeds = sampler, prompt, how, seeds
        self._metered = [sampler.metered() for _ in seeds]
        self._why: dict[int, Finish] = {}
        self._chunks = self._run()

    def __aiter__(self) -> _ForcedDraw:
        return self

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)

    def cancel(self, index: int, why: Finish) -> None:
        self._why.setdefault(index, why)
        self._metered[index].stop()

    async def _run(self) -> AsyncIterator[Chunk]:
        tasks = [asyncio.ensure_future(self._one(index)) for index in range(len(self._seeds))]
        try:
            for ended in asyncio.as_completed(tasks):
                yield await ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, index: int) -> Chunk:
        made = await self._sampler.one(self._prompt, self._how, self._seeds[index], self._metered[index])
        why = self._why.get(index)
        return replace(made, index=index, finish=why if why is not None else made.finish)


def _own_seed(seed: int, number: int) -> int:
    return int.from_bytes(blake2b(f"{seed}\x1f{number}".encode(), digest_size=8).digest(), "big") >> 1
