"""Connections to one server, kept and used again: requests out, and the bytes of their replies as they come in.

Chunk by chunk this takes about half the CPU of a full HTTP client, since it does nothing but what the gateway needs: HTTP/1.1 by
llhttp (httptools), no redirects, no cookies, no compression, no proxies. What goes wrong is told in aiohttp's words, so that
a server is one thing to those who read from it, whichever client is used.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import cast
from urllib.parse import urlsplit

import aiohttp
import httptools

CONNECT_WAIT = 10.0  # seconds for a connection
IDLE = 2.0  # seconds that an unused connection is kept; uvicorn closes its own after 5
ENDING = 1.0  # seconds for the end of a reply that nobody reads on
BUFFER = 16 * 1024  # bytes that may wait to be read: beyond it the server's writes have to wait
MAX_HEAD = 64 * 1024  # bytes of the head of a reply


class Lines:
    """All connections to one server, for one event loop."""

    def __init__(self, url: str, headers: dict[str, str], *, stall: float) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._secure = parts.hostname, parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._path = parts.path
        told = {"Host": parts.netloc, "Accept-Encoding": "identity", "Content-Type": "application/json", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        self._context = ssl.create_default_context() if self._secure else None
        self.stall = stall
        self._idle: deque[Line] = deque()
        self._all: set[Line] = set()

    async def post(self, path: str, body: bytes) -> Line:
        """Returns when the head of the reply is there. The line is the caller's to release or close."""
        line = self._take() or await self._connect()
        head = f"POST {self._path}/{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        try:
            await line.ask(head.encode("latin-1") + body)
        except BaseException:
            line.close()
            raise
        return line

    def close(self) -> None:
        for line in list(self._all):
            line.close()

    def __len__(self) -> int:
        """Open connections, in use or not."""
        return len(self._all)

    # --- for a line

    def keep(self, line: Line) -> None:
        self._idle.append(line)

    def forget(self, line: Line) -> None:
        self._all.discard(line)
        if line in self._idle:
            self._idle.remove(line)

    # --- inside

    def _take(self) -> Line | None:
        return self._idle.pop() if self._idle else None

    async def _connect(self) -> Line:
        async with asyncio.timeout(CONNECT_WAIT):
            _, line = await asyncio.get_running_loop().create_connection(
                lambda: Line(self),
                self._host,
                self._port,
                ssl=self._context,
                server_hostname=self._host if self._secure else None,
            )
        self._all.add(line)
        return line


class Line(asyncio.Protocol):
    """One connection, and the reply that is under way on it."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._busy = self._released = False

    # --- for who asks

    async def ask(self, request: bytes) -> None:
        self._stop_timer()
        self._parser = httptools.HttpResponseParser(self)
        self._busy, self._released, self._headed, self._paused = True, False, False, False
        self._complete, self._keeps = False, False
        self._problem: Exception | None = None
        self._found: list[bytes] = []
        self._size = 0  # bytes that wait to be read; before that, those of the head
        self.status, self.headers = 0, dict[str, str]()  # names in lower case
        self._last = self._loop.time()
        self._timer = self._loop.call_later(self._lines.stall, self._check_stall)
        self._transport.write(request)
        while not self._headed:
            if self._problem is not None:
                raise self._problem
            self._waiter = self._loop.create_future()
            await self._waiter
        if self.headers.get("content-encoding", "identity") != "identity":
            raise aiohttp.ClientPayloadError("the reply is compressed, which was not asked for")

    @property
    def content(self) -> Line:
        return self

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def readany(self) -> bytes:
        """What has come; nothing at the end."""
        while not self._found:
            if self._complete:
                return b""
            if self._problem is not None:
                raise self._problem
            self._waiter = self._loop.create_future()
            await self._waiter
        return self.read_nowait()

    def read_nowait(self) -> bytes:
        if not self._found and self._problem is not None:
            raise self._problem
        found, self._found, self._size = self._found, [], 0
        if self._paused:
            self._paused, self._last = False, self._loop.time()
            self._transport.resume_reading()
        return found[0] if len(found) == 1 else b"".join(found)

    def release(self) -> None:
        """Nothing more of the reply is wanted: the connection is kept where the reply ends, or is about to."""
        if self._complete:
            self._keep()
        elif self._busy and not self._released:
            self._released = True
            self._stop_timer()
            self._timer = self._loop.call_later(ENDING, self.close)
            if self._paused:
                self._paused = False
                self._transport.resume_reading()

    def close(self) -> None:
        self._stop_timer()
        self._lines.forget(self)
        self._transport.abort()
        if self._busy and not self._complete:
            self._problem = self._problem or aiohttp.ClientConnectionError("Connection closed")
            self._wake()
        self._busy = False

    # --- for the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        if not self._busy or self._complete:  # nobody asked for it
            self.close()
            return
        self._last = self._loop.time()
        if not self._headed:
            self._size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._keeps = False
            if not self._complete:
                self._fail(aiohttp.ClientPayloadError(f"the reply is not HTTP: {type(problem).__name__}"))
                return
        if not self._headed and self._size > MAX_HEAD:
            self._fail(aiohttp.ClientPayloadError(f"the head of the reply is longer than {MAX_HEAD:,} bytes"))
        elif self._headed:
            if self._size > BUFFER and not self._paused and not self._complete:
                self._paused = True
                self._transport.pause_reading()
            self._wake()
            if self._complete and self._released:
                self._keep()

    def connection_lost(self, problem: Exception | None) -> None:
        self._lines.forget(self)
        self._stop_timer()
        if not self._busy or self._complete:
            return
        if problem is None and self._headed and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self._complete = True  # a reply that says no length goes on to the end of its connection
            self._wake()
        elif self._headed:
            self._fail(aiohttp.ClientPayloadError("the reply ended early"))
        else:
            self._fail(aiohttp.ServerDisconnectedError())

    # --- for the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._complete:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self._headed, self._size = True, 0

    def on_body(self, data: bytes) -> None:
        if not self._released and not self._complete:
            self._found.append(data)
            self._size += len(data)

    def on_message_complete(self) -> None:
        if not self._headed:  # 1xx: the reply proper is still to come
            self.headers.clear()
        elif not self._complete:
            self._complete, self._keeps = True, self._parser.should_keep_alive()
            self._stop_timer()

    def on_message_begin(self) -> None:
        if self._complete:  # a second reply to one request
            self._keeps = False

    # --- inside

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, problem: Exception) -> None:
        self._problem = self._problem or problem
        self.close()

    def _keep(self) -> None:
        if self._busy:
            self._busy = False
            if self._keeps and not self._transport.is_closing():
                self._timer = self._loop.call_later(IDLE, self.close)
                self._lines.keep(self)
            else:
                self.close()

    def _check_stall(self) -> None:
        """One timer for the whole reply, set again when it was too early: cheaper than one for every chunk."""
        left = self._lines.stall - (self._loop.time() - self._last)
        if self._paused:  # it is we who are slow
            left = self._lines.stall
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_stall)
        else:
            self._fail(aiohttp.SocketTimeoutError("Timeout on reading data from socket"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
