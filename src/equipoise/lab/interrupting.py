"""Coroutines run to their end from plain functions, also where an event loop runs already; Ctrl-C asks them to finish."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(start: Callable[[], Coroutine[Any, Any, T]], *, stop: Callable[[], None]) -> T:
    """The result of `start()`. The first Ctrl-C calls `stop`, on the event loop, and the work goes on to end by itself;
    the second ends it.

    In a notebook, where a loop is running, the work gets a loop in a thread of its own.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_heeding(start, stop))
    with ThreadPoolExecutor(1) as thread:
        loop: list[asyncio.AbstractEventLoop] = []
        found = thread.submit(asyncio.run, _told(start, loop))
        try:
            return found.result()
        except KeyboardInterrupt:
            if loop and not found.done():
                loop[0].call_soon_threadsafe(stop)
            return found.result()


async def _heeding(start: Callable[[], Coroutine[Any, Any, T]], stop: Callable[[], None]) -> T:
    loop = asyncio.get_running_loop()

    def asked_to_stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)  # the next one is a KeyboardInterrupt
        stop()

    try:
        loop.add_signal_handler(signal.SIGINT, asked_to_stop)
    except (NotImplementedError, RuntimeError, ValueError):  # not in the main thread, or not on this system
        return await start()
    try:
        return await start()
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _told(start: Callable[[], Coroutine[Any, Any, T]], loop: list[asyncio.AbstractEventLoop]) -> T:
    loop.append(asyncio.get_running_loop())
    return await start()
