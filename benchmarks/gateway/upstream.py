"""A server of the OpenAI protocol that costs next to nothing: prepared events, one for every open stream at each tick.

    python benchmarks/gateway/upstream.py      # prints its port, and serves until its standard input is closed

An engine with continuous batching sends a token of each of its sequences at every step; so does this. What it sends is set by
`PUT /script`, since not every gateway hands unknown fields of a request on; `GET /script` tells what was sent since then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import deque
from dataclasses import asdict, dataclass, fields
from typing import Any

TOKEN = " tok"  # the text of a token, which a client counts
ANSWER = " \\boxed{4}"  # ends every completion


@dataclass
class Script:
    """What is sent to everyone."""

    tokens: int = 100  # of a completion
    gap: float = 0.02  # seconds from one token to the next; 0: all at once
    slots: int = 0  # streams that are served at a time, others wait; 0: any number


@dataclass
class Sent:
    """Since the script was set."""

    requests: int = 0
    tokens: int = 0
    most: int = 0  # streams at once


def event(told: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(told, separators=(",", ":")).encode() + b"\n\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk(choice: dict[str, Any]) -> bytes:
    """As vLLM writes it."""
    head = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    return event(head | {"choices": [{"index": 0, "logprobs": None, "finish_reason": None} | choice]})


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST = framed(chunk({"delta": {"role": "assistant", "content": ""}}))
NEXT = framed(chunk({"delta": {"content": TOKEN}}))
LAST = framed(chunk({"delta": {"content": ANSWER}}))
END = framed(chunk({"delta": {}, "finish_reason": "stop"}))
DONE = framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}


class Upstream:
    """All connections, and the clock that moves their streams on."""

    def __init__(self) -> None:
        self.script, self.sent = Script(), Sent()
        self.open: set[Connection] = set()
        self.waiting: deque[Connection] = deque()

    def begin(self, connection: Connection) -> None:
        self.sent.requests += 1
        if self.script.slots and len(self.open) >= self.script.slots:
            self.waiting.append(connection)
            return
        self.open.add(connection)
        self.sent.most = max(self.sent.most, len(self.open))
        connection.start()
        if not self.script.gap:
            while connection in self.open:
                connection.tick()

    def end(self, connection: Connection) -> None:
        self.open.discard(connection)
        with contextlib.suppress(ValueError):
            self.waiting.remove(connection)
        if self.waiting:
            following = self.waiting.popleft()
            self.sent.requests -= 1
            self.begin(following)

    async def tick(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            gap = self.script.gap or 0.01
            due = max(due + gap, loop.time() - gap)
            await asyncio.sleep(max(0.0, due - loop.time()))
            for connection in list(self.open):
                connection.tick()


class Connection(asyncio.Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.received = b""
        self.left = 0  # tokens
        self.asked: dict[str, Any] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, problem: Exception | None) -> None:
        self.upstream.end(self)

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        _, _, after = head.lower().partition(b"content-length:")
        length = int(after.partition(b"\r\n")[0] or 0)
        if len(body) < length:
            return
        self.received = body[length:]
        method, path, _ = head.split(b" ", 2)
        self.answer(method, path, json.loads(body[:length] or b"{}"))

    def answer(self, method: bytes, path: bytes, asked: dict[str, Any]) -> None:
        if path == b"/script":
            if method == b"PUT":
                known = {field.name for field in fields(Script)}
                self.upstream.script = Script(**{name: value for name, value in asked.items() if name in known})
                self.upstream.sent = Sent()
            self.whole(asdict(self.upstream.sent))
        elif method == b"GET":
            self.whole({"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "bench"}]})
        else:
            self.asked = asked
            self.upstream.begin(self)

    def start(self) -> None:
        self.left = self.upstream.script.tokens
        if self.asked.get("stream"):
            self.transport.write(HEAD + FIRST)

    def tick(self) -> None:
        self.left -= 1
        self.upstream.sent.tokens += int(self.asked.get("n") or 1)
        if self.asked.get("stream"):
            if self.left:
                self.transport.write(NEXT)
                return
            told = {"choices": [], "usage": usage(self.upstream.script.tokens)}
            options = self.asked.get("stream_options") or {}
            self.transport.write(LAST + END + (framed(event(told)) if options.get("include_usage") else b"") + DONE)
        elif self.left:
            return
        else:
            self.tell_whole()
        self.upstream.end(self)

    def tell_whole(self) -> None:
        tokens, n = self.upstream.script.tokens, int(self.asked.get("n") or 1)
        message = {"role": "assistant", "content": TOKEN * (tokens - 1) + ANSWER}
        choices = [{"index": i, "message": message, "logprobs": None, "finish_reason": "stop"} for i in range(n)]
        head = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion", "created": 1, "model": "tiny"}
        self.whole(head | {"choices": choices, "usage": usage(tokens * n)})

    def whole(self, told: dict[str, Any]) -> None:
        data = json.dumps(told).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self.transport.write(head.encode() + data)


async def main() -> None:
    upstream = Upstream()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(upstream), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    ticking = asyncio.create_task(upstream.tick())
    await asyncio.to_thread(sys.stdin.read)
    ticking.cancel()


if __name__ == "__main__":
    asyncio.run(main())
