"""A strategy on a request: n searches under one budget, stopped at the time limit, told of while they go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from equipoise.base import Choice, Completion, Question
from equipoise.gateway.asked import Asked
from equipoise.gateway.board import Entry, Tally
from equipoise.gateway.client import Client
from equipoise.gateway.orders import Order
from equipoise.gateway.refusals import Refusal, draining, late
from equipoise.gateway.replies import (
    DONE,
    Head,
    Told,
    reasoning,
    shown,
    stream_answer,
    tell_logprobs,
    write_reply,
    write_usage,
)
from equipoise.gateway.upstreams import Fleet, FleetSampler
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.samplers.http_draw import Fault

TellOf = Callable[[int, str], None]  # a line about one of the answers
Decide = Callable[[int, Choice], None]  # one of the answers is there

STOPPING = 5.0  # seconds for a search that was told to stop to answer with what it has


@dataclass(slots=True)
class Search:
    fleet: Fleet
    asked: Asked
    order: Order
    entry: Entry
    questions: list[Question]
    head: Head
    choices: list[Choice] = field(default_factory=list)
    _samplers: list[FleetSampler] = field(default_factory=list)
    _metered: list[Metered] = field(default_factory=list)
    _stopped: Refusal | None = None  # what is told where it was stopped before there was anything

    async def whole(self) -> dict[str, Any]:
        self.choices = await self._choose(None, None)
        return self.reply()

    def reply(self) -> dict[str, Any]:
        return write_reply(self.head, self.choices, logprobs=self._logprobs, usage=self._usage(self.choices))

    def drain(self) -> None:
        """The gateway ends: the answer is what was found so far."""
        self._stop(draining())

    async def stream(self, client: Client) -> None:
        """The first chunk with the first token of any sample, lines about the search while it goes, then the answer and its cost."""
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        begun: set[int] = set()

        def begin(index: int) -> None:
            if index not in begun and self.head.chat:
                begun.add(index)
                lines.put_nowait(self.head.chunk(index, {"role": "assistant", "content": ""}))

        def tell(index: int, line: str) -> None:
            begin(index)
            if line and self.order.progress and self.head.chat:
                lines.put_nowait(self.head.chunk(index, reasoning(line)))

        def decide(index: int, choice: Choice) -> None:
            begin(index)
            for event in stream_answer(self.head, index, choice, logprobs=self._logprobs):
                lines.put_nowait(event)

        choosing = asyncio.ensure_future(self._choose(tell, decide))
        try:
            await self._pass_on(lines, choosing, client)
            choices = self.choices = choosing.result()
        finally:
            choosing.cancel()
            await asyncio.gather(choosing, return_exceptions=True)
        while not lines.empty():
            await client.write(lines.get_nowait())
        if self.asked.wants_usage:
            await client.write(self.head.usage_chunk(self._usage(choices)))
        await client.write(DONE)

    # --- inside

    async def _pass_on(
        self, lines: asyncio.Queue[bytes], choosing: asyncio.Future[list[Choice]], client: Client
    ) -> None:
        """What is told, as it is told, until the choice is made."""
        while not choosing.done():
            waiting = asyncio.ensure_future(lines.get())
            both: set[asyncio.Future[Any]] = {waiting, choosing}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    await client.write(waiting.result())
            finally:
                waiting.cancel()

    async def _choose(self, tell: TellOf | None, decide: Decide | None) -> list[Choice]:
        timer = asyncio.get_running_loop().call_later(
            self.order.seconds, self._stop, late(self.order.seconds, self.fleet.settings.limits.seconds)
        )
        tasks = [asyncio.ensure_future(self._one(i, q, tell, decide)) for i, q in enumerate(self.questions)]
        try:
            choices = list(await asyncio.gather(*tasks))
        finally:
            timer.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return choices

    async def _one(self, index: int, question: Question, tell: TellOf | None, decide: Decide | None) -> Choice:
        assert self.order.strategy is not None
        tally = Tally(question, self.order.width, None if tell is None else lambda line: tell(index, line))
        self.entry.searches.append(tally)
        sampler = self.fleet.sampler(self.order.model, entries=bool(self.asked.top))
        metered = Metered(sampler, Ledger(None, within=self.entry.ledger), watch=tally.watch)
        self._samplers.append(sampler)
        self._metered.append(metered)
        if self._stopped is not None:
            metered.stop()
        choice = await self.order.strategy(question, metered)
        if shown(choice) is None:
            raise self._nothing(choice, sampler.fault)
        if decide is not None:
            decide(index, choice)
        return choice

    def _stop(self, why: Refusal) -> None:
        """The answer is what was found so far."""
        self._stopped = why
        for metered in self._metered:
            metered.stop()

    def _nothing(self, choice: Choice, fault: Fault | None) -> Exception:
        if self._stopped is not None:
            return self._stopped
        if fault is not None and fault.status == 429:
            return fault
        if choice.notes:
            return Fault(choice.notes[0], status=502)
        return Refusal(429, "no tokens are left for an answer", code="insufficient_quota")

    def _logprobs(self, completion: Completion) -> Told | None:
        """Those that were asked for, with as many alternatives; a search may have drawn more."""
        if self.asked.top is None:
            return None
        kept = (each.entries.find(completion) for each in self._samplers if each.entries is not None)
        return tell_logprobs(completion, next(filter(None, kept), None), self.asked.top)

    def _usage(self, choices: list[Choice]) -> dict[str, Any]:
        return write_usage(self.order, choices, self.entry.ledger.spent, sum(each.calls for each in self._samplers))


def make_head(order: Order, request_id: str, *, chat: bool) -> Head:
    return Head(make_id(request_id, chat=chat), int(time.time()), order.model, chat)


def make_id(request_id: str, *, chat: bool) -> str:
    return ("chatcmpl-" if chat else "cmpl-") + request_id
