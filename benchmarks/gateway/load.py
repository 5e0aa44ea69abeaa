"""Many requests at once, read as bytes, with when the first token and the last byte came. Standard library only.

    python benchmarks/gateway/load.py '{"url": "http://127.0.0.1:8080/v1", "body": {…}, "at_once": 100, "requests": 200}'

prints one JSON object. A token is a piece of text that the scripted server sends, so it is counted the same whether it comes in
an event of its own or with all others; `reads` are the pieces in which the content came to us.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

TOKEN, ANSWER = b" tok", b"boxed{4}"


class Exchange(asyncio.Protocol):
    """One connection, kept for one request after the other."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, request: bytes) -> asyncio.Future[None]:
        self.parts: list[bytes] = []
        self.first: float | None = None
        self.reads = self.size = 0
        self.tail = b""
        self.length: int | None = None  # of head and body; None: not known, or in chunks
        self.done = asyncio.get_running_loop().create_future()
        self.began = time.perf_counter()
        self.transport.write(request)
        return self.done

    def data_received(self, data: bytes) -> None:
        self.parts.append(data)
        if TOKEN in data or ANSWER in data:
            self.reads += 1
            if self.first is None:
                self.first = time.perf_counter()
        if len(self.parts) == 1 or self.length == 0:
            self.read_head()
        self.size += len(data)
        self.tail = (self.tail + data)[-5:]
        if self.tail == b"0\r\n\r\n" if not self.length else self.size >= self.length:
            self.finish()

    def read_head(self) -> None:
        head, found, _ = b"".join(self.parts).partition(b"\r\n\r\n")
        self.length = 0 if not found else None
        _, told, after = head.lower().partition(b"content-length:")
        if found and told:
            self.length = len(head) + 4 + int(after.partition(b"\r\n")[0])

    def connection_lost(self, problem: Exception | None) -> None:
        self.finish()

    def finish(self) -> None:
        if self.done is not None and not self.done.done():
            self.ended = time.perf_counter()
            self.done.set_result(None)


async def run(order: dict[str, Any]) -> dict[str, Any]:
    parts = urlsplit(order["url"])
    assert parts.hostname is not None
    body = json.dumps(order["body"]).encode()
    head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer none\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    loop = asyncio.get_running_loop()
    left, told = order["requests"], []

    async def caller() -> None:
        nonlocal left
        exchange: Exchange | None = None
        while left > 0:
            left -= 1
            if exchange is None or exchange.transport.is_closing():
                _, exchange = await loop.create_connection(Exchange, parts.hostname, parts.port)
            await exchange.ask(request)
            text = b"".join(exchange.parts)
            good = text[9:12] == b"200" and ANSWER in text
            told.append(
                {
                    "good": good,
                    "first": None if exchange.first is None else exchange.first - exchange.began,
                    "whole": exchange.ended - exchange.began,
                    "tokens": text.count(TOKEN) + text.count(ANSWER),
                    "reads": exchange.reads,
                }
            )
            if not good:
                print(text[:500], file=sys.stderr)
            if b"connection: close" in text[:1000].lower():
                exchange.transport.close()
        if exchange is not None:
            exchange.transport.close()

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(order["at_once"])))
    return {"seconds": time.perf_counter() - began, "requests": told}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.loads(sys.argv[1])))))
