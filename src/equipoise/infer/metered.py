"""The only sampler that a strategy sees: every draw names its kind, reserves, commits as tokens arrive, and can be watched."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from equipoise.base import Answer, Choice, Chunk, Completion, Draw, Finish, Prompt, Question, Sampler, Sampling
from equipoise.errors import NoRoom, UsageError
from equipoise.infer.ledger import Ledger, Reservation
from equipoise.infer.no_room import NothingDrawn, not_begun
from equipoise.measures.votes import Votes

Kind = Literal["answer", "probe", "judge"]
Watch = Callable[[Kind, Chunk], None]

# Ended by whoever drew them: their tokens were for nothing, and so stand in a line of their own.
GIVEN_UP: tuple[Finish, ...] = ("confidence", "consensus", "cancelled")
GRACE = 10.0  # seconds for a backend to end what was cancelled


class Metered:
    """A sampler with a ledger. One for each question: completions of a kind are numbered on from draw to draw."""

    def __init__(self, sampler: Sampler, ledger: Ledger, *, watch: Watch | None = None) -> None:
        self.sampler, self.ledger, self.watch = sampler, ledger, watch
        self.interrupted = False
        self.notes: Counter[str] = Counter()
        self._drawn: Counter[Kind] = Counter()
        self._open: set[MeteredDraw] = set()

    def draw(
        self,
        question: Question,
        *,
        n: int = 1,
        kind: Kind = "answer",
        prompt: Prompt | None = None,
        how: Sampling | None = None,
        at_once: int | None = None,
        least: int = 1,
        keep: int = 0,
    ) -> MeteredDraw:
        """`n` completions, `at_once` of them under way at a time (None: all that the budget has room for).

        Room for a whole completion is set aside before it starts; where the budget has less, it waits for others to give back
        what they did not use, and the last one may start with what is left, if that is `least` tokens. For every one that
        starts, `keep` tokens of the budget stay free: for its confidence question, its judge, its forced answer.
        """
        if n < 1 or (at_once is not None and at_once < 1):
            raise UsageError(f"a draw of n={n} completions, at_once={at_once}: both are 1 or more")
        first = self._drawn[kind]
        self._drawn[kind] += n
        return MeteredDraw(
            self,
            kind,
            question.prompt if prompt is None else prompt,
            question.how if how is None else how,
            asked=prompt is None or prompt == question.prompt,
            seed=question.seed,
            n=n,
            first=first,
            at_once=n if at_once is None else at_once,
            least=least,
            keep=keep,
        )

    def stop(self) -> None:
        """End everything under way and start nothing more: strategies go on to answer with what they have."""
        self.interrupted = True
        for draw in tuple(self._open):
            draw.cancel_rest("cancelled")

    def choice(
        self,
        answer: Answer | None,
        drawn: Sequence[Completion],
        votes: Votes | None = None,
        *,
        stopped_by: str = "finished",
        chosen: Completion | None = None,
        notes: Sequence[str] = (),
    ) -> Choice:
        """A choice with what the ledger says was spent, and with what went wrong on the way."""
        told = tuple(line if count == 1 else f"{line} ({count} times)" for line, count in self.notes.items())
        return Choice(
            answer=answer,
            chosen=chosen,
            drawn=tuple(drawn),
            ballots={} if votes is None else votes.counts,
            abstained=0 if votes is None else votes.abstained,
            tied=() if votes is None else votes.tied,
            stopped_by="interrupted" if self.interrupted else stopped_by,
            spent=self.ledger.spent,
            notes=(*told, *notes),
        )


@dataclass(slots=True)
class _Running:
    """A completion under way: its pieces so far, the room that it has, and where it comes from."""

    reservation: Reservation
    draw: Draw
    place: int  # in that backend draw
    parts: list[Chunk] = field(default_factory=list)
    asked_to_end: Finish | None = None

    def completion(self, finish: Finish | None) -> Completion:
        return join_chunks(self.parts, finish)


class MeteredDraw:
    """Completions under way, as pieces (`async for`), as they finish, or all at the end.

    Use it in `async with` where it may be left before its end: what is then still under way is cancelled and its tokens are
    counted to the last piece.
    """

    def __init__(
        self,
        metered: Metered,
        kind: Kind,
        prompt: Prompt,
        how: Sampling,
        *,
        asked: bool,
        seed: int,
        n: int,
        first: int,
        at_once: int,
        least: int,
        keep: int,
    ) -> None:
        self.kind: Kind = kind
        self.prompt, self.how, self.n, self.first = prompt, how, n, first
        self.out_of_budget = False  # fewer than n were drawn, or one was cut, since the tokens were spent
        self.done: dict[int, Completion] = {}
        self.short: set[int] = set()  # those that started with less room than was asked for
        self._ended: dict[int, Reservation] = {}
        self._metered, self._seed, self._at_once, self._least = metered, seed, at_once, min(least, how.max_tokens)
        self._keep = keep
        self._asked = asked  # the prompt is the question itself, not something that a strategy made of it
        self._next = 0
        self._running: dict[int, _Running] = {}
        self._arrived: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue()
        self._pumps: list[asyncio.Task[None]] = []
        self._taken: list[asyncio.Semaphore] = []
        self._stream: AsyncIterator[Chunk] | None = None
        self._no_more = metered.interrupted

    def __aiter__(self) -> AsyncIterator[Chunk]:
        if self._stream is None:
            self._stream = self._chunks()
        return self._stream

    async def __aenter__(self) -> MeteredDraw:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.close()

    async def finished(self) -> AsyncIterator[tuple[int, Completion]]:
        """Every completion as it ends, with its place in the draw."""
        async for chunk in self:
            if chunk.finish is not None:
                yield chunk.index, self.done[chunk.index]

    async def completions(self) -> list[Completion]:
        """All of them, in their order; fewer than n where the budget ended."""
        async with self:
            async for _ in self:
                pass
        return [self.done[index] for index in sorted(self.done)]

    def partial(self, index: int) -> Completion:
        """What there is so far of a completion."""
        return self.done[index] if index in self.done else self._running[index].completion(None)

    def cancel(self, index: int, why: Finish) -> None:
        running = self._running.get(index)
        if running is not None and running.asked_to_end is None:
            running.asked_to_end = why
            running.draw.cancel(running.place, why)

    def cancel_rest(self, why: Finish) -> None:
        """End what is under way; what has not started never does."""
        self._no_more = True
        for index in tuple(self._running):
            self.cancel(index, why)

    def tell_thinking(self, index: int, tokens: int) -> None:
        """So many of a finished completion's tokens were thinking: for a backend that leaves it in the text, and says none."""
        if self.kind == "answer" and self.done[index].finish not in GIVEN_UP:
            self._metered.ledger.rebook("answer", "thinking", tokens)

    def tell_unusable(self, index: int) -> None:
        """A finished completion is of no use and is asked for once more: its tokens are those of a retry."""
        self._ended[index].move("retry")

    async def close(self) -> None:
        """Cancel the rest and count its last pieces; a backend that does not end then is left after `GRACE` seconds."""
        self.cancel_rest("cancelled")
        try:
            async with asyncio.timeout(GRACE):
                async for _ in self:
                    pass
        except TimeoutError:
            self._metered.notes["the backend did not end a cancelled completion: its last tokens are not known"] += 1
        finally:
            await self._end_pumps()
            for running in self._running.values():
                running.reservation.move("cancelled")
                running.reservation.close()

    # --- inside

    async def _chunks(self) -> AsyncIterator[Chunk]:
        self._metered._open.add(self)
        starter: asyncio.Task[None] | None = None
        try:
            while True:
                if self._wants_more() and starter is None:
                    starter = asyncio.ensure_future(self._start())
                    # Where there is room at once, start at once: a draw of sixteen is then one batch.
                    await asyncio.sleep(0)
                if starter is not None and starter.done():
                    starter.result()
                    starter = None
                    continue
                if starter is not None and self._no_more:
                    starter.cancel()
                    await asyncio.gather(starter, return_exceptions=True)
                    starter = None
                # A short completion may have ended while the loop was elsewhere: its last piece is still to be handed on.
                idle = not self._running and self._arrived.empty()
                if idle and starter is None:
                    return
                if idle and starter is not None:
                    await starter
                    continue
                self._release()
                arrived = await self._arrived.get()
                if isinstance(arrived, BaseException):
                    raise arrived
                if arrived is not None:
                    yield arrived
        finally:
            if starter is not None:
                starter.cancel()
                await asyncio.gather(starter, return_exceptions=True)
            if not self._running:
                await self._end_pumps()
            self._metered._open.discard(self)

    async def _end_pumps(self) -> None:
        for task in self._pumps:
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        self._pumps.clear()

    def _wants_more(self) -> bool:
        return not self._no_more and self._next < self.n and len(self._running) < self._at_once

    async def _start(self) -> None:
        """Set room aside for as many as may start now, waiting for the first of them, and start these together."""
        ledger, most = self._metered.ledger, self.how.max_tokens
        granted: list[Reservation] = []
        try:
            while len(granted) < min(self.n - self._next, self._at_once - len(self._running)):
                left = ledger.left
                keep = self._keep * (self._next + len(granted) + 1)
                if granted and (left is not None and left - keep < most):
                    break
                reservation = await ledger.reserve(most, least=self._least, keep=keep)
                if reservation is None:
                    if not granted:
                        self.out_of_budget = self._no_more = True
                    break
                granted.append(reservation)
                if reservation.tokens < most:
                    break
        except BaseException:
            for reservation in granted:
                reservation.close()
            raise
        if self._no_more:  # stopped while it waited
            for reservation in granted:
                reservation.close()
        elif granted:
            self._launch(granted)
        self._arrived.put_nowait(None)  # wakes the loop

    def _launch(self, granted: list[Reservation]) -> None:
        """One backend draw for these. All have the same room, but for a single one that has less."""
        start, n = self._next, len(granted)
        how = replace(self.how, max_tokens=granted[0].tokens)
        try:
            draw = self._begin(how, n=n, first=self.first + start)
        except BaseException:
            for reservation in granted:
                reservation.close()
            raise
        self._next += n
        for place, reservation in enumerate(granted):
            self._running[start + place] = _Running(reservation, draw, place)
            if reservation.tokens < self.how.max_tokens:
                self.short.add(start + place)
        self._pumps.append(asyncio.ensure_future(self._pump(draw, start)))

    def _begin(self, how: Sampling, *, n: int, first: int) -> Draw:
        try:
            return self._metered.sampler.draw(self.prompt, how, n=n, seed=self._seed, first=first)
        except NoRoom as problem:
            if self._asked:
                raise
            return NothingDrawn(n, str(problem))  # what a search wrote fills the context: it goes on with what it has

    async def _pump(self, draw: Draw, start: int) -> None:
        """Book each piece the moment it arrives, and hand it on; the next one is fetched when this one was looked at."""
        turn = asyncio.Semaphore(1)
        try:
            while True:
                await turn.acquire()
                try:
                    piece = await anext(draw)
                except StopAsyncIteration:
                    self._check_ended(draw)
                    return
                chunk = replace(piece, index=start + piece.index)
                self._book(chunk)
                self._taken.append(turn)
                self._arrived.put_nowait(chunk)
        except asyncio.CancelledError:
            raise
        except NoRoom as problem:  # told by a server, once it had read the prompt
            if self._asked:
                self._arrived.put_nowait(problem)
            else:
                self._fail(draw, str(problem))
        except BaseException as problem:
            self._arrived.put_nowait(problem)

    def _fail(self, draw: Draw, why: str) -> None:
        """End what is left of a backend draw."""
        for index, running in [(index, each) for index, each in self._running.items() if each.draw is draw]:
            chunk = Chunk(index, finish="error", error=why) if running.parts else not_begun(index, why)
            self._book(chunk)
            self._arrived.put_nowait(chunk)

    def _release(self) -> None:
        """The consumer asks for more: whoever's piece it has seen may fetch the next."""
        seen, self._taken = self._taken, []
        for turn in seen:
            turn.release()

    def _check_ended(self, draw: Draw) -> None:
        left = sum(running.draw is draw for running in self._running.values())
        if left:
            name = type(self._metered.sampler).__name__
            self._arrived.put_nowait(RuntimeError(f"{name} ended its stream without a finish for {left} completions"))

    def _book(self, chunk: Chunk) -> None:
        running = self._running[chunk.index]
        reservation = running.reservation
        if chunk.restart:
            reservation.move("retry")
            running.parts.clear()
        if self.kind == "answer":
            reservation.commit("thinking", chunk.n_thinking)
            reservation.commit("answer", chunk.n_tokens - chunk.n_thinking)
        else:
            reservation.commit(self.kind, chunk.n_tokens)
        running.parts.append(chunk)
        if self._metered.watch is not None:
            self._metered.watch(self.kind, chunk)
        if chunk.finish is not None:
            self._finish(chunk, running)
        elif reservation.left < 0:  # one that keeps to its limit ends by itself; this one does not
            self.cancel(chunk.index, "length")

    def _finish(self, chunk: Chunk, running: _Running) -> None:
        finish = chunk.finish
        reservation = running.reservation
        told = [part.prompt_tokens for part in running.parts if part.prompt_tokens is not None]
        cached = [part.cached_tokens for part in running.parts if part.cached_tokens is not None]
        self._metered.ledger.tell_prompt(sum(told) if told else None, sum(cached) if cached else None)
        if finish == "length" and reservation.tokens < self.how.max_tokens:
            finish = "budget"  # it was the budget that made its limit lower than asked
        if finish == "budget":
            self.out_of_budget = True
        if finish in GIVEN_UP:
            reservation.move("cancelled")
        if finish == "error":
            self._metered.notes[f"a completion failed: {chunk.error or 'the backend did not say why'}"] += 1
        self.done[chunk.index] = running.completion(finish)
        reservation.close()
        self._ended[chunk.index] = reservation
        del self._running[chunk.index]


def join_chunks(parts: Sequence[Chunk], finish: Finish | None) -> Completion:
    """The completion of these pieces. A token list is kept only where every piece with tokens has it."""

    def joined(name: str, code: str) -> Any:
        pieces = [getattr(part, name) for part in parts if part.n_tokens]
        if not pieces or any(piece is None for piece in pieces):
            return None
        return array(code, [value for piece in pieces for value in piece])

    def last(name: str) -> Any:
        return next((getattr(part, name) for part in reversed(parts) if getattr(part, name) is not None), None)

    texts = [part.token_texts for part in parts if part.n_tokens]
    thinking = "".join(part.thinking for part in parts)
    return Completion(
        text="".join(part.text for part in parts),
        thinking=thinking or None,
        n_tokens=sum(part.n_tokens for part in parts),
        finish=finish,
        token_ids=joined("token_ids", "i"),
        token_texts=tuple(text for piece in texts for text in piece or ()) if texts and None not in texts else None,
        logprobs=joined("logprobs", "d"),
        entropies=joined("entropies", "d"),
        token_confidences=joined("token_confidences", "d"),
        tool_calls=last("tool_calls"),
        trace_confidences=last("trace_confidences"),
        grade=last("grade"),
    )


def join_completions(parts: Sequence[Completion], finish: Finish | None) -> Completion:
    """One completion that was drawn in several requests. Its text is for the caller to say: something may stand between the parts."""
    pieces = [
        Chunk(
            0,
            n_tokens=part.n_tokens or 0,
            token_ids=part.token_ids,
            token_texts=part.token_texts,
            logprobs=part.logprobs,
            entropies=part.entropies,
            token_confidences=part.token_confidences,
            tool_calls=part.tool_calls,
            trace_confidences=part.trace_confidences if len(parts) == 1 else None,
            grade=part.grade,
        )
        for part in parts
    ]
    return join_chunks(pieces, finish)
