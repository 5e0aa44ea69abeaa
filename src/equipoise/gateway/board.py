"""What is under way: one entry for each request, with its votes and spend, for progress lines and the status page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from equipoise.base import Chunk, Completion, Question
from equipoise.gateway.orders import Order
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Kind
from equipoise.text.display import many

MAX_KEPT = 1_000_000  # characters of a completion that are kept to read its answer
SHOWN = 60  # characters of an answer in a line

Tell = Callable[[str], None]  # a line; the empty one says that the search has begun


@dataclass(slots=True)
class Entry:
    """One request, as it goes."""

    id: str
    caller: str
    order: Order
    ledger: Ledger
    began: float = field(default_factory=time.monotonic)
    searches: list[Tally] = field(default_factory=list)
    end: Callable[[], None] | None = None  # has it end now, with what it has; None: it is not under way

    @property
    def votes(self) -> Counter[str]:
        return sum((each.votes for each in self.searches), Counter())

    @property
    def finished(self) -> int:
        return sum(each.finished for each in self.searches)


@dataclass(slots=True)
class Tally:
    """Watches one search: reads each completion's answer when it ends, and tells how the vote stands."""

    question: Question
    width: int
    tell: Tell | None = None
    votes: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    begun: bool = False
    _texts: dict[int, list[str]] = field(default_factory=dict)

    def watch(self, kind: Kind, chunk: Chunk) -> None:
        if not self.begun and chunk.finish != "error":  # a stream that has not begun can still be refused with a status
            self.begun = True
            if self.tell is not None:
                self.tell("")
        if kind != "answer":
            return
        texts = self._texts.setdefault(chunk.index, [])
        if chunk.restart:
            texts.clear()
        if chunk.text:
            texts.append(chunk.text)
        if chunk.finish is None:
            return
        text = "".join(self._texts.pop(chunk.index))[-MAX_KEPT:]
        if chunk.finish in ("stop", "length", "tool", "budget"):
            self.finished += 1
            answer = self.question.read(Completion(text, finish=chunk.finish, tool_calls=chunk.tool_calls))
            if answer is not None:
                self.votes[answer.text] += 1
            if self.tell is not None:
                self.tell(self.line())

    def line(self) -> str:
        if not self.votes:
            return f"{self.finished} of {many(self.width, 'sample')}, no answer yet\n"
        (leader, most), *_ = self.votes.most_common(1)
        shown = leader if len(leader) <= SHOWN else leader[: SHOWN - 1] + "…"
        return f"{self.finished} of {many(self.width, 'sample')}, leading {shown} ({most})\n"


def margin(votes: Counter[str]) -> int | None:
    """How far the leader is ahead of the next; None without votes."""
    first = [count for _, count in votes.most_common(2)]
    return None if not first else first[0] - (first[1] if len(first) > 1 else 0)
