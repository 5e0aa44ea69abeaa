"""Hours of mixed load on a real gateway, and a server that counts for itself what it made.

A request's last message says what the server is to do with it, so that every kind is known on both sides. Where something is cut
short, the server waits before it: then what it sent is what had come in, and both counts must be equal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

SHARES = {
    "stream": 38,
    "whole": 16,
    "search": 14,
    "cancel": 10,
    "leave": 4,
    "retry": 6,
    "broken": 4,
    "dead": 2,
    "overload": 6,
}
BURST = 48  # requests of an overload, all at once
AT_ONCE = 32  # that the gateway takes
WORDS = 12  # tokens of a completion
PAUSE = 1.0  # seconds before something is cut short
WIDTH = 4  # completions of a search


@dataclass
class Upstream:
    """Keeps its connections, as real servers do."""

    tokens: int = 0
    connections: int = 0
    failed: set[str] = field(default_factory=set)  # requests whose first try was refused
    held: Counter[str] = field(default_factory=Counter)  # completions of a request that wait for their end

    async def __aenter__(self) -> Upstream:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *problem: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, _, after = head.partition(b"content-length:")
        body = json.loads(await reader.readexactly(int(after.partition(b"\r\n")[0] or 0)) or b"{}")
        if head.startswith(b"get"):
            await self._whole(writer, 200, {"data": [{"id": "tiny", "owned_by": "soak"}]})
            return True
        kind, _, name = body["messages"][-1]["content"].partition(":")
        if kind == "dead" or (kind == "retry" and name not in self.failed):
            self.failed.add(name)
            await self._whole(writer, 500, {"error": {"message": "out of order"}})
            return True
        if not body.get("stream"):
            await asyncio.sleep(0.02)
            self.tokens += WORDS
            message = {"role": "assistant", "content": _said()}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await self._whole(writer, 200, {"object": "chat.completion", "choices": [choice], "usage": _usage()})
            return True
        return await self._stream(reader, writer, kind, name)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: str, name: str) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for word in _said().split(" "):
            await asyncio.sleep(random.uniform(0, 0.02))
            self.tokens += 1
            await _event(writer, {"choices": [{"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}]})
            if kind in ("cancel", "leave", "broken") and word == "w5":
                if kind != "broken":
                    self.held[name] += 1
                    await reader.read()  # until the other side has closed
                    return False
                await asyncio.sleep(PAUSE)
                writer.transport.abort()
                return False
        await _event(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        await _event(writer, {"choices": [], "usage": _usage()})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()
        return True

    async def _whole(self, writer: asyncio.StreamWriter, status: int, told: Any) -> None:
        data = json.dumps(told).encode()
        head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()


@dataclass
class Client:
    """Asks, and says whether what came back is what that kind of request must get."""

    session: aiohttp.ClientSession
    url: str
    servers: list[Upstream]
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def ask(self, kind: str, number: int) -> None:
        try:
            found = await self._ask(kind, number)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            found = f"{type(problem).__name__}: {problem}"[:200]
        self.told[kind, found] += 1
        good = {
            "dead": ("502", "429"),
            "broken": ("200 error", "429"),
            "cancel": ("left", "429"),
            "leave": ("left", "429"),
        }
        if found not in good.get(kind, ("200", "429")):
            self.wrong.append(f"{kind} {number}: {found}")

    async def _ask(self, kind: str, number: int) -> str:
        body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": f"{kind}:{number}"}]}
        body["stream"] = kind not in ("whole", "dead", "leave") and not (kind in ("search", "retry") and number % 2)
        if kind in ("search", "leave"):
            body["model"] = f"tiny@majority:n={WIDTH}"
        async with self.session.post(f"{self.url}/chat/completions", json=body) as reply:
            if reply.status != 200:
                await reply.read()
                return str(reply.status)
            if kind == "cancel":
                await reply.content.readuntil(b"w5 ")
                reply.close()
                return "left"
            text = (await reply.read()).decode()
        if "event-stream" in reply.headers["content-type"]:
            return _check_events(text)
        said = json.loads(text)
        return "200" if said["choices"][0]["message"]["content"].split() == _said().split() else f"said {text[:200]}"

    async def leave(self, number: int) -> None:
        """Ask for a search whose completions do not end, and go away."""
        asking = asyncio.ensure_future(self._ask("leave", number))
        while not asking.done() and sum(server.held[str(number)] for server in self.servers) < WIDTH:
            await asyncio.sleep(0.05)
        done, _ = await asyncio.wait({asking}, timeout=PAUSE)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        self.told["leave", "429" if done else "left"] += 1
        if done and asking.result() != "429":
            self.wrong.append(f"leave {number}: {asking.result()}")


def _check_events(text: str) -> str:
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    if any("error" in event for event in events):
        return "200 error"
    deltas = [choice["delta"] for event in events for choice in event.get("choices", ())]
    said = "".join(delta.get("content") or "" for delta in deltas)
    return "200" if said.split() == _said().split() and "data: [DONE]" in text else f"said {said[:200]}"


async def soak(url: str, ops: str, pid: int, servers: list[Upstream], *, seconds: float, requests: int, seed: int = 0):
    """Load of all kinds, evenly over the time. Gives what was found, to be checked and told."""
    order, tasks = random.Random(seed), set[asyncio.Task[None]]()
    rss: list[tuple[float, float]] = []
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60)
    ) as session:
        client = Client(session, url, servers)
        before = await _idle(ops, pid)
        began, sent = time.monotonic(), 0

        def start(kind: str) -> None:
            nonlocal sent
            work = client.leave(sent) if kind == "leave" else client.ask(kind, sent)
            task = asyncio.ensure_future(work)
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            sent += 1

        kinds, weights = list(SHARES), [share / (BURST if kind == "overload" else 1) for kind, share in SHARES.items()]
        next_look = 0.0
        while sent < requests:
            await asyncio.sleep(max(0.0, began + seconds * sent / requests - time.monotonic()))
            kind = order.choices(kinds, weights)[0]
            for _ in range(BURST if kind == "overload" else 1):
                start(kind)
            if (now := time.monotonic() - began) >= next_look:
                rss.append((now, _rss(pid)))
                next_look = now + max(0.5, seconds / 400)
        while tasks:
            await asyncio.sleep(0.05)
        took = time.monotonic() - began
    after, metrics = await _idle(ops, pid), await _metrics(ops)
    await _until(lambda: all(server.connections == 0 for server in servers))
    kinds_made = ("thinking", "answer", "probe", "judge", "retry", "cancelled")
    return {
        "seconds": round(took, 1),
        "requests": sent,
        "replies": {f"{kind} {found}": count for (kind, found), count in sorted(client.told.items())},
        "wrong": client.wrong,
        "ledger": sum(int(metrics.get(f'equipoise_tokens_total{{kind="{kind}"}}', 0)) for kind in kinds_made),
        "upstream": sum(server.tokens for server in servers),
        "inflight": metrics["equipoise_inflight"],
        "load": sum(value for name, value in metrics.items() if name.startswith("equipoise_upstream_load")),
        "connections": sum(server.connections for server in servers),
        "before": before,
        "after": after,
        "rss": [(round(t, 1), round(mb, 2)) for t, mb in rss],
    }


def growth(rss: list[tuple[float, float]]) -> float:
    """Megabytes gained after the first fifth, by the line of least squares."""
    kept = [(t, mb) for t, mb in rss if t >= rss[-1][0] / 5]
    mean_t, mean_mb = (sum(pair[i] for pair in kept) / len(kept) for i in (0, 1))
    slope = sum((t - mean_t) * (mb - mean_mb) for t, mb in kept) / sum((t - mean_t) ** 2 for t, _ in kept)
    return slope * (kept[-1][0] - kept[0][0])


async def _idle(ops: str, pid: int) -> dict[str, float]:
    """Tasks and open files of the gateway once nothing is under way and unused connections are closed."""
    await asyncio.sleep(4.0)
    metrics = await _metrics(ops)
    await asyncio.sleep(0.5)  # for the connection of that question to be closed too
    return {"tasks": metrics["equipoise_tasks"], "files": len(os.listdir(f"/proc/{pid}/fd"))}


async def _metrics(ops: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{ops}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def _rss(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def _until(true: Any) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while not true():
                await asyncio.sleep(0.1)


def _said() -> str:
    return " ".join([*(f"w{i}" for i in range(WORDS - 1)), "\\boxed{4}"])


def _usage() -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": WORDS, "total_tokens": 7 + WORDS}


async def _event(writer: asyncio.StreamWriter, told: Any) -> None:
    data = b"data: " + json.dumps(told).encode() + b"\n\n"
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()
