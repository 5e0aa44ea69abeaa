"""Several coroutines at once, none of which outlives the call."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What each returns, in their order. The first exception ends the others before it travels on, as itself."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            if not task.cancelling():  # one that is on its way out is not to be disturbed in what it puts in order
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
