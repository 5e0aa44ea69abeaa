"""One exchange with a client: its body in, a whole reply or a stream out, and the moment it goes away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeVar

from equipoise.gateway.refusals import Refusal
from equipoise.gateway.replies import PING, write_event

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")

BODY_WAIT = 30.0  # seconds for a whole body to come


class ClientGone(Exception):
    """Nobody is left to answer."""


class Client:
    """Wraps an ASGI exchange. What it writes are whole events, so that pings never split one."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, request_id: str, ping: float) -> None:
        self._scope, self._receive, self._send, self._ping = scope, receive, send, ping
        self.request_id = request_id
        self.headers: dict[str, str] = {}  # sent with whatever is sent
        self.status: int | None = None  # None: nothing was sent
        self.started: float | None = None  # when the first byte was sent
        self.streaming = False
        self._last = 0.0

    def header(self, name: str) -> str | None:
        """The header's value; None where it is missing or there twice."""
        found = [value for key, value in self._scope["headers"] if key == name.encode()]
        return found[0].decode("latin-1") if len(found) == 1 else None

    async def body(self, most: int) -> bytes:
        told = self.header("content-length") or ""
        if told.isdecimal() and len(told) < 20 and int(told) > most:
            raise _too_long(most)
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_WAIT):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise _too_long(most)
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise Refusal(408, f"the body did not come within {BODY_WAIT:g} seconds", code="timeout") from None

    async def while_there(self, work: Awaitable[T]) -> T:
        """What `work` gives; it is cancelled, and ended, as soon as the client has gone."""
        me, left = asyncio.current_task(), False
        assert me is not None

        async def watch() -> None:
            nonlocal left
            await self._gone()
            left = True
            me.cancel()

        watching = asyncio.ensure_future(watch())
        try:
            return await work
        except asyncio.CancelledError:
            if left and me.uncancel() == 0:  # nobody else wanted it to end
                raise ClientGone from None
            raise
        finally:
            watching.cancel()

    async def pinging(self, work: Awaitable[T]) -> T:
        """What `work` gives; while it is silent, comments keep the connection open, also before its first event."""
        loop = asyncio.get_running_loop()
        pings: set[asyncio.Task[None]] = set()
        timer: asyncio.TimerHandle

        def check() -> None:
            nonlocal timer
            if time.monotonic() - self._last >= self._ping and not pings:
                ping = asyncio.ensure_future(self.write(PING))
                pings.add(ping)
                ping.add_done_callback(pings.discard)
            timer = loop.call_later(max(0.001, self._last + self._ping - time.monotonic()), check)

        self._last = time.monotonic()
        timer = loop.call_later(self._ping, check)
        try:
            return await work
        finally:
            timer.cancel()
            for ping in list(pings):
                ping.cancel()
            await asyncio.gather(*pings, return_exceptions=True)

    async def write(self, data: bytes) -> None:
        """Whole events of a stream. The first write is what commits to a status."""
        if self.status is None:
            await self._start(
                200, {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}
            )
            self.streaming = True
        self._last = time.monotonic()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def reply(self, told: Mapping[str, Any] | bytes, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        data = told if isinstance(told, bytes) else json.dumps(told, separators=(",", ":")).encode()
        await self._start(status, {"content-type": "application/json", "content-length": str(len(data)), **headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def refuse(self, refusal: Refusal) -> None:
        """An error reply; in a stream that has begun an error event, and no [DONE]."""
        if self.streaming:
            self.status = refusal.status
            await self.write(write_event(refusal.body()))
            await self.end()
        else:
            await self.reply(refusal.body(), refusal.status, refusal.headers())

    # --- inside

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.started = status, time.monotonic()
        listed = {"x-request-id": self.request_id, "x-content-type-options": "nosniff", **self.headers, **headers}
        told = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in listed.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": told})

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _too_long(most: int) -> Refusal:
    return Refusal(413, f"the body is longer than {most:,} bytes", code="body_too_long")
