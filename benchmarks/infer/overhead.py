"""What the sampler and the ledger cost on top of reading the stream: CPU time per event, and memory with many streams at once.

    python benchmarks/infer/overhead.py                 # the table, and results in overhead.json
    python benchmarks/infer/overhead.py --rounds 1      # a quick look

The server is another process that sends prepared events on every open stream at a steady pace, as an engine does that makes a
token for each of its sequences in turn. The arms read the same streams, in an order drawn anew each round:

    bytes       aiohttp, nothing looked at
    json        aiohttp, lines split and JSON parsed
    sampler     HttpSampler, every chunk taken
    metered     HttpSampler through Metered, every chunk taken and booked: what a strategy does
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from equipoise.base import Question, Sampling
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.samplers.http import HttpSampler, connect

HERE = Path(__file__).parent
PROMPT = [{"role": "user", "content": "?"}]
KINDS = {"text": None, "20 log-probs": 20}


# --- the server


def event(top: int | None) -> bytes:
    """A token as vLLM sends it."""
    choice: dict[str, Any] = {"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None}
    if top:
        told = [{"token": f" t{i}", "logprob": -0.5 * i - 0.1, "bytes": [32, 116, 48]} for i in range(top)]
        choice["logprobs"] = {"content": [{"token": " token", "logprob": -0.1, "bytes": [32], "top_logprobs": told}]}
    chunk = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps(chunk | {"choices": [choice]}).encode() + b"\n\n"


END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def serve() -> None:
    """Each request names in its extra fields how many events it wants, and how many milliseconds apart."""
    events = {top: framed(event(top)) for top in KINDS.values()}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                asked = json.loads(await reader.readexactly(length))
                writer.write(HEAD)
                due = asyncio.get_running_loop().time()
                for _ in range(asked["events"]):
                    writer.write(events[asked.get("top_logprobs")])
                    due += asked["gap"]
                    await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
                    await writer.drain()
                usage = b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": %d}}\n\n'
                writer.write(framed(END) + framed(usage % asked["events"]) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# --- the arms: each reads `n` streams of `events` at once, and tells in how many pieces they came


def body(how: Sampling) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "m", "messages": PROMPT, "stream": True, **how.extra}
    return asked | ({} if how.top_logprobs is None else {"logprobs": True, "top_logprobs": how.top_logprobs})


async def read_bytes(url: str, how: Sampling, n: int) -> int:
    async def one(session: aiohttp.ClientSession) -> int:
        async with session.post(f"{url}/chat/completions", json=body(how)) as response:
            return len([None async for _ in response.content.iter_any()])

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return sum(await asyncio.gather(*(one(session) for _ in range(n))))


async def read_json(url: str, how: Sampling, n: int) -> int:
    async def one(session: aiohttp.ClientSession) -> int:
        async with session.post(f"{url}/chat/completions", json=body(how)) as response:
            return len([json.loads(line[6:]) async for line in response.content if line.startswith(b"data: {")])

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return sum(await asyncio.gather(*(one(session) for _ in range(n))))


def sampler_at(url: str, n: int) -> HttpSampler:
    return connect(url, model="m", dialect="openai", concurrency=n)


async def read_sampler(url: str, how: Sampling, n: int) -> int:
    async with sampler_at(url, n) as sampler:
        made = [chunk.n_tokens async for chunk in sampler.draw(PROMPT, how, n=n, seed=0)]
    assert sum(made) == n * how.extra["events"], sum(made)
    return len(made)


async def read_metered(url: str, how: Sampling, n: int) -> int:
    async with sampler_at(url, n) as sampler:
        metered = Metered(sampler, Ledger(n * how.max_tokens))
        async with metered.draw(Question("q", PROMPT, lambda completion: None, how), n=n) as draw:
            pieces = len([None async for _ in draw])
    assert metered.ledger.spent.generated == n * how.extra["events"], metered.ledger.spent
    return pieces


ARMS: dict[str, Callable[[str, Sampling, int], Awaitable[int]]] = {
    "bytes": read_bytes,
    "json": read_json,
    "sampler": read_sampler,
    "metered": read_metered,
}


# --- measuring


def measure_time(url: str, *, rounds: int, n: int, events: int, gap: float, seed: int) -> list[dict[str, Any]]:
    """Microseconds of this process's CPU for each event, median and range over the rounds."""
    order, rows = random.Random(seed), []
    for kind, top in KINDS.items():
        how = Sampling(max_tokens=events, top_logprobs=top, extra={"events": events, "gap": gap})
        took: dict[str, list[float]] = {arm: [] for arm in ARMS}
        pieces = dict.fromkeys(ARMS, 0)
        for _ in range(rounds):
            for arm in order.sample(list(ARMS), len(ARMS)):
                start = time.process_time()
                pieces[arm] += asyncio.run(ARMS[arm](url, how, n))
                took[arm].append((time.process_time() - start) / (n * events) * 1e6)
        base = {arm: statistics.median(took[arm]) for arm in ("bytes", "json")}
        for arm, micros in took.items():
            middle = statistics.median(micros)
            rows.append(
                {
                    "event": kind,
                    "bytes_per_event": len(event(top)),
                    "arm": arm,
                    "us_per_event": middle,
                    "low": min(micros),
                    "high": max(micros),
                    "pieces_per_event": pieces[arm] / (rounds * n * events),
                    "events_per_core_second": 1e6 / middle,
                    "x_bytes": middle / base["bytes"],
                    "x_json": middle / base["json"],
                }
            )
    return rows


def measure_memory(url: str, *, n: int, events: int, turns: int, gap: float) -> list[dict[str, float]]:
    """Draw after draw of `n` streams through one metered sampler: the highest resident memory within each, in MB."""
    how = Sampling(max_tokens=events, extra={"events": events, "gap": gap})

    async def go() -> list[dict[str, float]]:
        rows = []
        async with sampler_at(url, n) as sampler:
            for turn in range(turns):
                metered = Metered(sampler, Ledger(n * events))
                question = Question("q", PROMPT, lambda completion: None, how)
                drawing = asyncio.ensure_future(metered.draw(question, n=n).completions())
                highest = resident()
                while not drawing.done():
                    await asyncio.wait([drawing], timeout=0.1)
                    highest = max(highest, resident())
                assert len(await drawing) == n
                rows.append({"draw": turn + 1, "highest_mb": highest})
        return rows

    return asyncio.run(go())


def resident() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 1e6


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--streams", type=int, default=64)
    parse.add_argument("--events", type=int, default=100)
    parse.add_argument("--gap", type=float, default=0.03, help="seconds between two events of a stream")
    parse.add_argument("--many", type=int, default=256, help="streams at once for the memory")
    parse.add_argument("--turns", type=int, default=8)
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--out", type=Path, default=HERE / "overhead.json")
    parse.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parse.parse_args()
    if args.serve:
        asyncio.run(serve())
        return
    command = [sys.executable, __file__, "--serve"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        url = f"http://127.0.0.1:{child.stdout.readline().strip()}/v1"
        # Before the other: what that leaves behind would hide growth.
        memory = measure_memory(url, n=args.many, events=args.events, turns=args.turns, gap=args.gap)
        speed = {"rounds": args.rounds, "n": args.streams, "events": args.events, "gap": args.gap, "seed": args.seed}
        times = measure_time(url, **speed)
    finally:
        child.stdin.close()
        child.wait(10)
    versions = {"python": platform.python_version(), "aiohttp": aiohttp.__version__, "machine": platform.machine()}
    result = {"settings": {k: v for k, v in vars(args).items() if k not in ("out", "serve")}, "versions": versions}
    args.out.write_text(json.dumps(result | {"times": times, "memory": memory}, indent=1) + "\n")
    print(
        "| event | arm | CPU µs per event | range | pieces per event | events per core and second | × bytes | × json |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in times:
        print(
            f"| {row['event']} ({row['bytes_per_event']:,} bytes) | {row['arm']} | {row['us_per_event']:.0f} | "
            f"{row['low']:.0f} to {row['high']:.0f} | {row['pieces_per_event']:.2f} | {row['events_per_core_second']:,.0f} | {row['x_bytes']:.1f} | "
            f"{row['x_json']:.1f} |"
        )
    print(f"\n{args.many} streams at once, highest resident memory of each draw in MB:", end=" ")
    print(", ".join(f"{row['highest_mb']:.0f}" for row in memory))


if __name__ == "__main__":
    main()
