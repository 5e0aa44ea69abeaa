"""A draw from a server: one request and one connection for each completion, so that closing it stops the server.

What a request runs into is told apart by what can be done about it: a `Fault` may be tried again, a `UsageError` may not.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import aiohttp

from equipoise.base import Chunk, Finish
from equipoise.errors import NoRoom, UsageError
from equipoise.samplers.http_pieces import Pieces
from equipoise.wire import DONE, Event, EventStream, Malformed, read_event

MAX_WAIT = 60.0  # seconds that a server's Retry-After may ask for
TAIL = 5.0  # seconds after the end of a completion for the server's count to come
BYTES = 1024 * 1024  # of a reply, and besides for each token:
BYTES_PER_TOKEN = 16 * 1024  # twenty log-probs take about 3,000


class Fault(Exception):
    """A try that failed, and may be made again."""

    def __init__(self, reason: str, *, after: float | None = None, status: int | None = None) -> None:
        super().__init__(reason)
        self.after = after  # seconds to wait, where the server said so
        self.status = status  # None: the server did not answer


class Refused(UsageError):
    """The server's no to this request. `said`: its own words, without address or key."""

    def __init__(self, message: str, *, status: int, said: str) -> None:
        super().__init__(message)
        self.status, self.said = status, said


class TooLong(Refused, NoRoom):
    """The server's no to a prompt that leaves it no room for an answer."""


class Content(Protocol):
    async def readany(self) -> bytes: ...

    def read_nowait(self) -> bytes: ...


class Response(Protocol):
    """What is used of aiohttp's response, so that another client can take its place."""

    @property
    def status(self) -> int: ...

    @property
    def content_type(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...  # looked up by names in lower case

    @property
    def content(self) -> Content: ...

    def release(self) -> object: ...

    def close(self) -> None: ...


# Sends the request of a completion by its number, and returns when it was accepted.
Send = Callable[[int], Awaitable[Response]]
# Is told the events of a completion by its number, as they come; None: they begin anew.
Note = Callable[[int, Sequence[Event] | None], None]


@dataclass(slots=True)
class Tries:
    """How often a request is sent, and how long is waited in between."""

    retries: int
    backoff: float
    seed: int
    patience: float | None = None  # seconds: a server that asks for a longer wait is not asked again

    def ends(self, attempt: int, fault: Fault) -> bool:
        """Whether this try was the last."""
        late = self.patience is not None and fault.after is not None and fault.after > self.patience
        return late or attempt >= self.retries

    def wait(self, number: int, attempt: int, after: float | None) -> float:
        """Doubling, between half and one and a half of it by chance, so that many do not come back at once."""
        if after is not None:
            return min(after, MAX_WAIT)
        return self.backoff * 2.0**attempt * (0.5 + Random(f"{self.seed}/{number}/{attempt}").random())


class HttpDraw:
    """Completions under way. Dropped, or cancelled while it waits, it closes every connection."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._started = False

    def __aiter__(self) -> HttpDraw:
        return self

    async def __anext__(self) -> Chunk:
        if not self._started:
            self._started = True
            self._requests.start()
            # The tasks hold the requests and not this object, so that it can be dropped while they run.
            end = weakref.finalize(self, _abandon, self._requests, asyncio.get_running_loop())
            end.atexit = False
        try:
            return await self._requests.next()
        except StopAsyncIteration:
            raise
        except BaseException:
            self._requests.abort()
            raise

    def cancel(self, index: int, why: Finish) -> None:
        self._requests.cancel(index, why)

    async def aclose(self) -> None:
        """Close every connection, and return when that is done."""
        self._requests.abort()
        await asyncio.gather(*self._requests.tasks, return_exceptions=True)


@dataclass(slots=True)
class Requests:
    """The requests of one draw, each in a task of its own. A task hands out a chunk, and reads on when that was taken."""

    n: int
    first: int
    max_tokens: int
    top_logprobs: int | None
    send: Send
    permits: Callable[[], AbstractAsyncContextManager[None]]
    tries: Tries
    server: str  # its name in messages
    note: Note | None = None
    hide: Callable[[str], str] = str  # takes the key out of what the server says
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _left: int = 0
    _why: dict[int, Finish] = field(default_factory=dict)
    _pieces: dict[int, Pieces] = field(default_factory=dict)
    _failed: Counter[int] = field(default_factory=Counter)  # tokens of tries that failed
    _sent: set[int] = field(default_factory=set)
    _prompt_tokens: int | None = None  # all completions of a draw have one prompt
    _arrived: asyncio.Queue[tuple[Chunk | BaseException, asyncio.Future[None] | None]] = field(
        default_factory=asyncio.Queue
    )

    def start(self) -> None:
        self._left = self.n
        self.tasks = [asyncio.ensure_future(self._complete(index)) for index in range(self.n)]

    async def next(self) -> Chunk:
        if not self._left:
            raise StopAsyncIteration
        arrived, taken = await self._arrived.get()
        if isinstance(arrived, BaseException):
            raise arrived
        if taken is not None and not taken.done():
            taken.set_result(None)
        self._left -= arrived.finish is not None
        return arrived

    def cancel(self, index: int, why: Finish) -> None:
        if index not in self._why:
            self._why[index] = why
            if (
                index in self._pieces
            ):  # else it has not begun: cancelled now, its task would never run and tell of its end
                self.tasks[index].cancel()

    def abort(self) -> None:
        self._left = 0
        for task in self.tasks:
            task.cancel()

    # --- inside

    async def _complete(self, index: int) -> None:
        if index in self._why:
            self._say(Chunk(index, prompt_tokens=0, cached_tokens=0, finish=self._why[index]))
            return
        try:
            await self._try_often(index)
        except asyncio.CancelledError:
            why = self._why.get(index)
            if why is None:
                if self._left:  # not by us, and whoever waits for it would wait for ever
                    self._arrived.put_nowait(
                        (RuntimeError(f"a request to {self.server} was cancelled: was it closed?"), None)
                    )
                raise
            self._say(self._cut(index, why))
        except BaseException as problem:
            self._arrived.put_nowait((problem, None))

    async def _try_often(self, index: int) -> None:
        attempt, told = 0, False
        while True:
            pieces = self._pieces[index] = Pieces(index, self.top_logprobs, restart=told)
            if self.note is not None:
                self.note(self.first + index, None)
            try:
                async with self.permits():
                    self._say(await self._try(index, pieces))
                return
            except Fault as fault:
                told = told or pieces.told
                self._failed[index] += pieces.made
                if self.tries.ends(attempt, fault) or self._failed[index] >= self.max_tokens:
                    often = f"{fault} ({attempt + 1} tries)" if attempt else str(fault)
                    self._say(Chunk(index, finish="error", error=often))
                    return
                wait = self.tries.wait(self.first + index, attempt, fault.after)
            attempt += 1
            await asyncio.sleep(wait)

    async def _try(self, index: int, pieces: Pieces) -> Chunk:
        """Send it and hand out what comes, but for the last chunk."""
        self._sent.add(index)
        response = await self.send(self.first + index)
        whole = False
        try:
            if response.content_type == "application/json":
                await self._read_whole(response, pieces)
            else:
                await self._read_stream(response, pieces)
            whole = not pieces.cut
        except (Malformed, aiohttp.ClientError, TimeoutError, OSError) as problem:
            if pieces.finish is None:  # else the completion is there, and only the server's count is missing
                raise Fault(_describe(problem)) from problem
        finally:
            if whole:
                response.release()
            else:
                response.close()
        if pieces.finish is None:
            raise Fault("the stream ended without a finish_reason")
        try:
            last = pieces.close()
        except Malformed as problem:  # pieces of a tool call that do not fit together
            raise Fault(_describe(problem)) from problem
        self._prompt_tokens = self._prompt_tokens or last.prompt_tokens
        return last

    async def _read_stream(self, response: Response, pieces: Pieces) -> None:
        stream, received, most = EventStream(), 0, BYTES + BYTES_PER_TOKEN * self.max_tokens
        try:
            while True:
                async with asyncio.timeout(None if pieces.finish is None else TAIL):
                    data = await response.content.readany()
                received += len(data)
                if received > most:
                    raise Malformed(f"more than {most:,} bytes for {self.max_tokens} tokens")
                found = stream.feed(data) if data else stream.end()
                done = DONE in found
                await self._hand(pieces, found, response)
                if done or not data or pieces.cut:
                    return
        except asyncio.CancelledError:
            # What had arrived is counted, since the server made it.
            self._say(pieces.add(_read_rest(response, stream)))
            raise

    async def _read_whole(self, response: Response, pieces: Pieces) -> None:
        """From a server that does not stream."""
        most = BYTES + BYTES_PER_TOKEN * self.max_tokens
        body = await read_capped(response, most)
        if len(body) > most:
            raise Malformed(f"more than {most:,} bytes for {self.max_tokens} tokens")
        await self._hand(pieces, [body], response)

    async def _hand(self, pieces: Pieces, found: list[bytes], response: Response) -> None:
        events: list[Event] = []
        malformed: Malformed | None = None
        for data in found:
            try:
                if data != DONE:
                    events.append(read_event(data))
            except Malformed as problem:  # what came before it was made, and is told
                malformed = problem
                break
        chunk = pieces.add(event for event in events if event.error is None)
        if self.note is not None:
            self.note(self.first + pieces.index, events)
        if pieces.lacks_logprobs:
            raise UsageError(
                f"{self.server} was asked for top_logprobs={self.top_logprobs} and sends no log-probs: use a server that does "
                "(vLLM, SGLang, llama.cpp), or a strategy that needs none and top_logprobs=None"
            )
        if pieces.finish is None and self._failed[pieces.index] + pieces.made > self.max_tokens:
            # It does not keep to its limit. Closed before anything else is waited for, it costs no more than what was read.
            pieces.cut, pieces.finish = True, "length"
            response.close()
        if chunk is not None:
            taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._arrived.put_nowait((chunk, taken))
            await taken
        for event in events:
            if event.error is None:
                continue
            said = self.hide(event.error)
            if event.no_room:
                raise TooLong(f"{self.server} has no room for the prompt: {said}", status=400, said=said)
            if is_final(event.error_code):
                raise Refused(f"{self.server} refused the request: {said}", status=event.error_code or 400, said=said)
            raise Fault(f"the server broke off: {said}")
        if malformed is not None:
            raise malformed

    def _say(self, chunk: Chunk | None) -> None:
        if chunk is not None:
            self._arrived.put_nowait((chunk, None))

    def _cut(self, index: int, why: Finish) -> Chunk:
        """The end of a completion that was given up, with what is known of its prompt."""
        if index not in self._sent:
            return Chunk(index, prompt_tokens=0, cached_tokens=0, finish=why)
        pieces = self._pieces[index]
        if pieces.usage is not None:
            return Chunk(index, prompt_tokens=pieces.usage.prompt, cached_tokens=pieces.usage.cached, finish=why)
        return Chunk(index, prompt_tokens=self._prompt_tokens, finish=why)


async def read_capped(response: Response, most: int) -> bytes:
    """The body, or the first of it and a little more than `most` bytes."""
    body = b""
    while len(body) <= most:
        data = await response.content.readany()
        if not data:
            break
        body += data
    return body


def is_final(status: int | None) -> bool:
    """Whether the same request would fail again: an error of the one who asks, but for those that pass with time."""
    return status is not None and 400 <= status < 500 and status not in (408, 409, 425, 429)


def _read_rest(response: Response, stream: EventStream) -> list[Event]:
    try:
        found = stream.feed(response.content.read_nowait())
        return [event for event in (read_event(data) for data in found if data != DONE) if event.error is None]
    except (Malformed, aiohttp.ClientError, OSError, RuntimeError):  # the connection had already failed
        return []


def _describe(problem: BaseException) -> str:
    if isinstance(problem, Malformed):
        return f"the server sent {problem}"
    if isinstance(problem, TimeoutError):
        return f"the server was silent for too long ({problem or type(problem).__name__})"
    return f"the connection broke: {problem or type(problem).__name__}"


def _abandon(requests: Requests, loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(requests.abort)
