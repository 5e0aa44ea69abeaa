"""A proxy that cuts connections on which nothing comes for a while, as load balancers do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass
class IdleProxy:
    url: str
    cut: int = 0  # connections


@contextlib.asynccontextmanager
async def idle_proxy(target: str, *, idle: float) -> AsyncIterator[IdleProxy]:
    """In front of `target` (http://HOST:PORT): a reply of which nothing comes for `idle` seconds is cut off."""
    host, port = target.removeprefix("http://").split(":")
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wait: float | None) -> None:
        while data := await asyncio.wait_for(reader.read(65536), wait):
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        there, back = await asyncio.open_connection(host, int(port))
        asking = asyncio.ensure_future(pump(reader, back, None))
        try:
            await pump(there, writer, idle)
        except TimeoutError:
            proxy.cut += 1
            writer.transport.abort()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            writer.close()
            back.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = IdleProxy(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield proxy
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
