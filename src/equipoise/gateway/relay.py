"""One completion, as the upstream says it: handed through with every field, counted, cut at the budget, and never sent twice.

A request is tried again, elsewhere where there is another upstream, until the first byte of its answer is there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from equipoise.gateway.asked import OWN, Asked, ChatAsked
from equipoise.gateway.counted import Counted, check_error, name_reasoning, read_object
from equipoise.gateway.joined import Joined, as_chunks
from equipoise.gateway.keys import no_tokens
from equipoise.gateway.orders import Order
from equipoise.gateway.refusals import Refusal
from equipoise.gateway.replies import DONE
from equipoise.gateway.upstreams import BACKOFF, LONGEST_WAIT, Fleet, Upstream
from equipoise.infer.ledger import Ledger
from equipoise.samplers.http_draw import Fault, Refused, Response, Tries, read_capped
from equipoise.wire import DONE as LAST
from equipoise.wire import EventStream, Malformed

MAX_WHOLE = 64 * 1024 * 1024  # bytes of a whole reply

T = TypeVar("T")
Write = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class Relay:
    """One request on its way. `ledger` is the request's own, inside that of its key."""

    fleet: Fleet
    asked: Asked
    raw: Mapping[str, Any]
    order: Order
    ledger: Ledger
    most: int  # tokens of a completion that nobody gave a limit
    calls: int = 0
    begun: bool = False  # something of the answer was sent
    counted: Counted | None = None

    async def whole(self) -> bytes:
        """The reply, in one piece. Where there is a budget it is streamed from the upstream, so that it can be cut."""
        budgeted = self.ledger.left is not None
        await self._open()
        return await self._try(self._join if budgeted else self._forward)

    async def stream(self, send: Write) -> None:
        await self._open()

        def write(data: bytes) -> Awaitable[None]:
            self.begun = True
            return send(data)

        async def once(upstream: Upstream) -> None:
            await self._read(upstream, write)

        await self._try(once)
        await send(self._count.last() + DONE)

    def close(self, *, done: bool) -> None:
        """Book what is left to book. Tokens of a reply that nobody got are cancelled ones."""
        if self.counted is not None:
            self.counted.close(done=done, asked=self.calls > 0)

    # --- inside

    async def _open(self) -> None:
        """Room for all completions of the request."""
        n, left, each = self.order.n, self.ledger.left, self.order.max_tokens
        room = await self.ledger.reserve((each or self.most) * n)
        if room is None:
            raise no_tokens()
        limit = each if left is None else max(1, room.tokens // n)
        self.counted = Counted(self.asked, self.ledger, room, n, limit)

    @property
    def _count(self) -> Counted:
        assert self.counted is not None
        return self.counted

    async def _try(self, once: Callable[[Upstream], Awaitable[T]]) -> T:
        failed: list[Upstream] = []
        retries = self.fleet.settings.retries
        tries = Tries(retries, BACKOFF, id(self), patience=LONGEST_WAIT)
        for attempt in range(retries + 1):
            try:
                async with self.fleet.using(self.order.model, avoid=failed) as upstream:
                    self.calls += 1
                    return await once(upstream)
            except Fault as fault:
                failed.append(upstream)
                if self.begun or tries.ends(attempt, fault):
                    raise
                self._count.void()
                try:
                    await self._open()  # what the failed try has made is spent
                except Refusal:
                    raise fault from None
                wait = tries.wait(0, attempt, fault.after)
            if all(each in failed or each.resting() > 0 for each in self.fleet.upstreams):
                await asyncio.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _body(self, upstream: Upstream, *, stream: bool) -> dict[str, Any]:
        body = {name: value for name, value in self.raw.items() if name != OWN and value is not None}
        body["model"] = self.order.model
        limit = self._count.limit
        if limit is not None:
            named: list[str] = [name for name in ("max_tokens", "max_completion_tokens") if name in body]
            body |= dict.fromkeys(named or [upstream.server.limit_field], limit)
        body["stream"] = stream
        body.pop("stream_options", None)
        if stream:
            options = dict(self.raw.get("stream_options") or {}) | {"include_usage": True}
            if limit is not None and upstream.dialect in ("vllm", "sglang"):
                options["continuous_usage_stats"] = True  # several tokens may come with one event
            body["stream_options"] = options
        return body

    @property
    def _path(self) -> str:
        return "chat/completions" if isinstance(self.asked, ChatAsked) else "completions"

    async def _forward(self, upstream: Upstream) -> bytes:
        response = await self.fleet.send(upstream, self._path, self._body(upstream, stream=False))
        try:
            told, data = await self._read_whole(response)
        except BaseException:
            response.close()
            raise
        response.release()
        check_error(told)
        self._count.book_usage(told.get("usage"))
        return json.dumps(told).encode() if name_reasoning(told, "message") else data

    async def _read_whole(self, response: Response) -> tuple[dict[str, Any], bytes]:
        try:
            data = await read_capped(response, MAX_WHOLE)
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise Fault("the connection to the upstream broke", status=502) from problem
        if len(data) > MAX_WHOLE:
            raise Fault(f"the upstream sent more than {MAX_WHOLE:,} bytes", status=502)
        return read_object(data), data

    async def _join(self, upstream: Upstream) -> bytes:
        joined = Joined(isinstance(self.asked, ChatAsked))

        async def take(data: bytes) -> None:
            for event in EventStream(MAX_WHOLE).feed(data):
                joined.add(json.loads(event))

        await self._read(upstream, take)
        joined.usage = self._count.usage()
        return json.dumps(joined.reply()).encode()

    async def _read(self, upstream: Upstream, write: Write) -> None:
        """Every event to its end, or to the budget's."""
        response = await self.fleet.send(upstream, self._path, self._body(upstream, stream=True))
        whole = False
        try:
            if response.content_type == "application/json":
                told, _ = await self._read_whole(response)
                await self._hand([json.dumps(each).encode() for each in as_chunks(told)], write, response)
            else:
                # In a task of its own: every chunk would else wake all who wait for it, a dozen calls deep.
                await asyncio.ensure_future(self._read_events(response, write))
            whole = not self._count.over
        finally:
            if whole:
                response.release()
            else:
                response.close()

    async def _read_events(self, response: Response, write: Write) -> None:
        stream, content, count = EventStream(), response.content, self._count
        while True:
            try:
                data = await content.readany()
                known = count.hand_known(data) if stream.between else None
                found = [] if known is not None else stream.feed(data) if data else stream.end()
            except Malformed as problem:
                raise Fault(f"the upstream sent {problem}", status=502) from problem
            except (aiohttp.ClientError, TimeoutError, OSError) as problem:
                if count.ended:
                    return
                raise Fault("the connection to the upstream broke", status=502) from problem
            if known is None:
                await self._hand(found, write, response)
            else:
                if count.over:
                    response.close()
                await write(known)
            if count.over:
                await write(count.cut())
                return
            if LAST in found:
                return
            if not data:
                if not count.ended:
                    raise Fault("the upstream's stream ended without a finish_reason", status=502)
                return

    async def _hand(self, found: list[bytes], write: Write, response: Response) -> None:
        out = []
        problem: Exception | None = None
        for data in found:
            if data == LAST:
                break
            try:
                out.append(self._count.hand(data))
            except (Fault, Refused) as found_wrong:  # what came before it was made, and is told
                problem = found_wrong
                break
        if self._count.over:  # before anything waits: what comes now is not wanted
            response.close()
        told = b"".join(out)
        if told:
            await write(told)
        if problem is not None:
            raise problem
