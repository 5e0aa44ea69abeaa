"""One hard token budget: tokens are reserved before they are made and committed as they arrive. Ledgers nest."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from equipoise.base import Spend
from equipoise.errors import UsageError

Line = Literal["thinking", "answer", "probe", "judge", "retry", "cancelled"]


@dataclass(frozen=True, slots=True)
class Prices:
    """Money per million tokens."""

    prompt: float = 0.0
    generated: float = 0.0
    cached: float | None = None  # None: as any other token of a prompt

    def of(self, *, prompt: int | None, cached: int | None, generated: int) -> float | None:
        if prompt is None and self.prompt:
            return None
        known = min(cached or 0, prompt or 0)
        cached_price = self.prompt if self.cached is None else self.cached
        return (((prompt or 0) - known) * self.prompt + known * cached_price + generated * self.generated) / 1e6


class Ledger:
    """The tokens that may be generated, and what became of them.

    Prompt tokens are listed, and cost money where they have a price, but do not count against the budget: it limits what is
    generated, in all lines together. A ledger inside another reserves in both, so that a question cannot overspend its run.
    For one event loop; not for threads.
    """

    def __init__(
        self, budget: int | None = None, *, within: Ledger | None = None, prices: Prices | None = None
    ) -> None:
        if budget is not None and budget < 0:
            raise UsageError(f"a token budget is 0 or more, found {budget}; None is no limit")
        self.budget, self.within = budget, within
        self.prices: Prices | None = prices if prices is not None or within is None else within.prices
        self._lines: Counter[str] = Counter()
        self._prompt: int | None = 0
        self._cached: int | None = 0
        self._reserved = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._started = time.monotonic()

    @property
    def spent(self) -> Spend:
        prompt, cached, generated = self._prompt, self._cached, self._lines.total()
        return Spend(
            prompt=prompt,
            cached=cached,
            **self._lines,
            money=None if self.prices is None else self.prices.of(prompt=prompt, cached=cached, generated=generated),
            seconds=time.monotonic() - self._started,
        )

    @property
    def left(self) -> int | None:
        """Tokens neither spent nor reserved, here and in the ledgers around; None: no limit. Never below 0."""
        rooms = [ledger._room() for ledger in self._chain() if ledger.budget is not None]
        return max(0, min(rooms)) if rooms else None

    async def reserve(self, most: int, *, least: int = 1, keep: int = 0) -> Reservation | None:
        """Room for `most` tokens, once there is. Less, down to `least`, where no reservation is left that could make room.

        The last `keep` tokens of the budget are not granted: they are for what comes later. None: nothing is left to wait for.
        """
        if not 1 <= least <= most:
            raise UsageError(f"a reservation of at least {least} and at most {most} tokens: use 1 <= least <= most")
        while True:
            left = self.left
            if left is None or left - keep >= most:
                return self._grant(most)
            limiting = [each for each in self._chain() if each.budget is not None and each._room() - keep < most]
            if not any(ledger._reserved for ledger in limiting):
                return self._grant(left - keep) if left - keep >= least else None
            freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            for ledger in limiting:
                ledger._waiting.append(freed)
            try:
                await freed
            finally:
                for ledger in limiting:
                    if freed in ledger._waiting:
                        ledger._waiting.remove(freed)

    def tell_prompt(self, tokens: int | None, cached: int | None) -> None:
        """The prompt of one request. None: its backend does not say, and from then on nobody knows the sum."""
        for ledger in self._chain():
            ledger._prompt = None if tokens is None or ledger._prompt is None else ledger._prompt + tokens
            ledger._cached = None if cached is None or ledger._cached is None else ledger._cached + cached

    def rebook(self, old: Line, new: Line, tokens: int) -> None:
        """Tokens already booked turn out to have been for something else."""
        self._book(old, -tokens)
        self._book(new, tokens)

    def _chain(self) -> list[Ledger]:
        return [self] if self.within is None else [self, *self.within._chain()]

    def _room(self) -> int:
        assert self.budget is not None
        return self.budget - self._lines.total() - self._reserved

    def _grant(self, tokens: int) -> Reservation:
        for ledger in self._chain():
            ledger._reserved += tokens
        return Reservation(self, tokens)

    def _book(self, line: str, tokens: int) -> None:
        for ledger in self._chain():
            ledger._lines[line] += tokens

    def _unreserve(self, tokens: int) -> None:
        for ledger in self._chain():
            ledger._reserved -= tokens
            waiting, ledger._waiting = ledger._waiting, []
            for freed in waiting:
                if not freed.done():
                    freed.set_result(None)


@dataclass(slots=True)
class Reservation:
    """Tokens set aside for one completion. Those it has made are booked under lines that may still change."""

    ledger: Ledger
    tokens: int  # granted
    used: int = 0
    closed: bool = False
    _lines: Counter[Line] = field(default_factory=Counter)

    @property
    def left(self) -> int:
        return self.tokens - self.used

    def commit(self, line: Line, tokens: int) -> None:
        """Book tokens that were made, also those beyond the reservation: they were spent.

        Fewer than 0 take back what was booked too much, where a backend's own count at the end is lower.
        """
        if tokens:
            inside = 0 if self.closed else min(self.used + tokens, self.tokens) - min(self.used, self.tokens)
            self.used += tokens
            self._lines[line] += tokens
            self.ledger._book(line, tokens)
            if inside:
                self.ledger._unreserve(inside)

    def move(self, line: Literal["retry", "cancelled"]) -> None:
        """All tokens so far turn out to have been for nothing. Those of earlier tries stay retries."""
        for old in [old for old in self._lines if old not in ("retry", line)]:
            tokens = self._lines.pop(old)
            self.ledger.rebook(old, line, tokens)
            self._lines[line] += tokens

    def close(self) -> None:
        """Give back what was not used."""
        if not self.closed:
            self.closed = True
            if self.left > 0:
                self.ledger._unreserve(self.left)
