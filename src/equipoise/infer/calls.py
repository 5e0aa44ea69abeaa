"""The other ledger of an agent: how often it may call its tools, and what that cost together with its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from equipoise.base import Spend
from equipoise.errors import UsageError


class CallLedger:
    """Calls are reserved before they are made, so that no number of them at once can pass the limit.

    `most`: of all tools together; `each`: of a tool by its name. None, or a tool that is not named: no limit of its own.
    """

    def __init__(self, most: int | None = None, *, each: Mapping[str, int] | None = None) -> None:
        self.most, self.each = most, dict(each or {})
        if min([0 if most is None else most, *self.each.values()], default=0) < 0:
            raise UsageError(f"a limit of calls is 0 or more, found {most} and {self.each}; None is no limit")
        self.made: Counter[str] = Counter()
        self._reserved: Counter[str] = Counter()

    def left(self, tool: str) -> int | None:
        """Calls neither made nor reserved; None: no limit."""
        taken = self.made + self._reserved
        rooms = [] if self.most is None else [self.most - taken.total()]
        rooms += [self.each[tool] - taken[tool]] if tool in self.each else []
        return min(rooms) if rooms else None

    def reserve(self, tool: str) -> bool:
        """Set one call aside; False: there is none left."""
        left = self.left(tool)
        if left is not None and left < 1:
            return False
        self._reserved[tool] += 1
        return True

    def commit(self, tool: str) -> None:
        """It was made."""
        self.release(tool)
        self.made[tool] += 1

    def release(self, tool: str) -> None:
        """It was not made after all."""
        if not self._reserved[tool]:
            raise RuntimeError(f"no call of '{tool}' is reserved")
        self._reserved[tool] -= 1


def unified_cost(spent: Spend, made: Mapping[str, int], *, token_price: float, prices: Mapping[str, float]) -> float:
    """tokens · price + Σ_tool calls · price of that tool (https://arxiv.org/abs/2511.17006); a tool without a price is free."""
    return spent.generated * token_price + sum(count * prices.get(tool, 0.0) for tool, count in made.items())


def show_left(calls: CallLedger, tools: Mapping[str, Any], tokens: int | None) -> str:
    """What an agent is told of its budget: as the ledgers have it."""
    lefts = {tool: calls.left(tool) for tool in tools}
    told = [f"{tool} {'without limit' if left is None else f'{left} calls'}" for tool, left in lefts.items()]
    return ", ".join([*told, *([] if tokens is None else [f"{tokens} tokens"])])
