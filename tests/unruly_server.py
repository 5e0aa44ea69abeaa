"""A server of the OpenAI protocol, written on bare sockets so that it can misbehave in every way that a test asks for."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    number: int  # of the request, from 0
    tries: int  # requests with this seed before it


@dataclass
class Reply:
    writer: asyncio.StreamWriter
    sent: int = 0
    chunked: bool = False  # from here on, in pieces of HTTP/1.1

    async def raw(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)
        await self.writer.drain()

    async def head(self, status: int = 200, kind: str = "text/event-stream", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Said", f"Content-Type: {kind}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def event(self, data: Any) -> None:
        await self.raw(b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n")

    async def say(self, *texts: str, **more: Any) -> None:
        """A token each, without log-probs."""
        for text in texts:
            self.sent += 1
            await self.event({"choices": [{"index": 0, "delta": {"content": text}, **more}]})

    async def finish(self, reason: str = "stop", usage: dict[str, Any] | None = None, done: bool = True) -> None:
        await self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if usage is not None:
            await self.event({"choices": [], "usage": usage})
        if done:
            await self.event(b"[DONE]")

    async def error(self, status: int, body: Any, **headers: str) -> None:
        await self.head(status, "application/json", **headers)
        await self.raw(json.dumps(body).encode())

    def reset(self) -> None:
        """The connection ends with a reset, not with an end of file."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def hang(self) -> None:
        await asyncio.Event().wait()

    async def forever(self, pause: float = 0.001) -> None:
        while True:
            await self.say("x")
            await asyncio.sleep(pause)


Behave = Callable[[Reply, Asked], Awaitable[None]]


@dataclass
class UnrulyServer:
    """Answers every POST as `behave` says. Counts what it was asked, and the streams that are open."""

    behave: Behave
    owner: str = "someone"
    models: Any = None
    asked: list[Asked] = field(default_factory=list)
    asked_models: int = 0
    open: int = 0
    most_open: int = 0
    sent: int = 0  # tokens
    left: int = 0  # streams that the other side closed before their end

    async def __aenter__(self) -> UnrulyServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self._tasks: set[asyncio.Task[None]] = set()
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *problem: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
            reply = Reply(writer)
            if method == "GET":
                await self._list_models(reply, path)
            else:
                tries = sum(each.body.get("seed") == body.get("seed") for each in self.asked)
                self.asked.append(Asked(path, headers, body, len(self.asked), tries))
                await self._answer(reader, reply, self.asked[-1])
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    async def _list_models(self, reply: Reply, path: str) -> None:
        self.asked_models += 1
        if self.models == "none":
            await reply.error(404, {"detail": "Not Found"})
            return
        if self.models == "hang":
            await reply.hang()
        listed = self.models if self.models is not None else {"data": [{"id": "tiny", "owned_by": self.owner}]}
        await reply.error(200, listed)

    async def _answer(self, reader: asyncio.StreamReader, reply: Reply, asked: Asked) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        behaving = asyncio.ensure_future(self.behave(reply, asked))
        gone = asyncio.ensure_future(reader.read())  # ends when the other side closes
        try:
            await asyncio.wait([behaving, gone], return_when=asyncio.FIRST_COMPLETED)
            if behaving.done():
                behaving.result()
            else:
                self.left += 1
        except ConnectionError:
            self.left += 1
        finally:
            self.open -= 1
            self.sent += reply.sent
            for task in (behaving, gone):
                task.cancel()
            await asyncio.gather(behaving, gone, return_exceptions=True)
