"""Replies kept to be given again: off by default, in memory only, bounded, and each caller's own unless the operator shares them.

A reply is found again by all that could change it: the request with every field, the upstream's model, the strategy and its limits.
Kept are replies to requests that ask for the same again (a seed, or temperature 0), unless the operator says all; and only whole
ones: nothing that a time limit cut or of which a completion failed.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from equipoise.base import Choice, Spend
from equipoise.gateway.asked import OWN, Asked, ChatAsked
from equipoise.gateway.joined import Joined, as_chunks
from equipoise.gateway.orders import Order
from equipoise.gateway.replies import DONE, write_event
from equipoise.gateway.settings import CacheRule
from equipoise.wire import DONE as LAST
from equipoise.wire import EventStream

LONGEST = 1024 * 1024  # bytes of a reply that is kept
LONGEST_STREAM = 8 * LONGEST  # of the events that it came in
HEADER = "x-equipoise-cache"  # hit or miss; not there where a reply is never kept
# They say how a reply is sent, or stand in the order with what the operator allows of them.
_SENDING = {OWN, "model", "n", "stream", "stream_options", "max_tokens", "max_completion_tokens"}


@dataclass(frozen=True, slots=True)
class Kept:
    reply: bytes  # whole, as JSON
    at: float


@dataclass(slots=True)
class Cache:
    rule: CacheRule
    size: int = 0  # bytes
    _kept: OrderedDict[bytes, Kept] = field(default_factory=OrderedDict)  # the one used last is the last

    def place(self, asked: Asked, raw: Mapping[str, Any], order: Order, caller: str) -> bytes | None:
        """Where the reply to this would be; None: it is never kept."""
        wanted = asked.equipoise is None or asked.equipoise.cache
        if not wanted or not (self.rule.any_request or asked.seed is not None or asked.temperature == 0):
            return None
        said = {name: value for name, value in raw.items() if name not in _SENDING and value is not None}
        told = [
            None if self.rule.shared else caller,
            isinstance(asked, ChatAsked),
            said,
            [order.model, order.spec, order.budget, order.max_tokens, order.n, order.seconds],
        ]
        return sha256(json.dumps(told, sort_keys=True).encode()).digest()

    def find(self, place: bytes) -> Kept | None:
        kept = self._kept.get(place)
        if kept is not None and time.monotonic() - kept.at >= self.rule.seconds:
            self._drop(place)
            kept = None
        if kept is not None:
            self._kept.move_to_end(place)
        return kept

    def keep(self, place: bytes, reply: bytes) -> None:
        if len(reply) > min(self.rule.max_bytes, LONGEST):
            return
        if place in self._kept:
            self._drop(place)
        self._kept[place] = Kept(reply, time.monotonic())
        self.size += len(reply)
        while len(self._kept) > self.rule.entries or self.size > self.rule.max_bytes:
            self._drop(next(iter(self._kept)))

    def __len__(self) -> int:
        return len(self._kept)

    def _drop(self, place: bytes) -> None:
        self.size -= len(self._kept.pop(place).reply)


def is_whole(choices: Sequence[Choice]) -> bool:
    """Whether a search went as it would again: not interrupted, and no completion failed."""
    return all(choice.stopped_by != "interrupted" and not choice.notes for choice in choices)


def say_again(kept: Kept, id: str) -> dict[str, Any]:
    """The reply under a new id. Its usage is this request's: nothing. What the first one cost stands beside it."""
    reply: dict[str, Any] = json.loads(kept.reply)
    usage = reply.get("usage")
    was = usage if isinstance(usage, dict) else {}
    answers = was.get("x_equipoise")
    details = {"calls": 0, "discarded_tokens": 0, "spent": Spend().to_dict(), "cached": True}
    first = {name: was.get(name) for name in ("prompt_tokens", "completion_tokens")}
    usage = {
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "total_tokens": 0,
        "x_equipoise": {**(answers if isinstance(answers, dict) else {}), **details, "first": first},
    }
    return {**reply, "id": id, "usage": usage}


def as_events(reply: Mapping[str, Any], *, usage: bool) -> bytes:
    """The whole reply as a stream."""
    said = as_chunks(reply)
    return b"".join(write_event(each) for each in (said if usage else said[:1])) + DONE


@dataclass(slots=True)
class Copying:
    """Hands a stream on and keeps it, to be joined when it is whole."""

    send: Callable[[bytes], Awaitable[None]]
    _parts: list[bytes] = field(default_factory=list)
    _size: int = 0

    async def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= LONGEST_STREAM:
            self._parts.append(data)
        await self.send(data)

    def reply(self, usage: Mapping[str, Any], *, chat: bool) -> bytes | None:
        """None: it is too long to be kept, or of a shape that is handed on and no more."""
        if self._size > LONGEST_STREAM:
            return None
        joined = Joined(chat, usage=usage)
        try:
            for event in EventStream(LONGEST_STREAM).feed(b"".join(self._parts)):
                if event != LAST:
                    joined.add(json.loads(event))
            return json.dumps(joined.reply()).encode()
        except (AttributeError, KeyError, TypeError, ValueError):  # the upstream's own shapes: not ours to mend
            return None
