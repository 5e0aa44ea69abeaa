"""What a reply that is handed through has cost so far: its events looked at one by one, and booked as they come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from equipoise.gateway.alike import Shape, learn
from equipoise.gateway.asked import Asked, ChatAsked
from equipoise.gateway.replies import write_event
from equipoise.infer.ledger import Ledger, Line, Reservation
from equipoise.samplers.http_draw import Fault, Refused, is_final
from equipoise.wire import describe_error

SHAPES = 8  # of events that are remembered at a time: choices come in turns
BOOKED = 16  # tokens that are booked at a time; they were reserved before, so that nobody else has them in between


@dataclass(slots=True)
class Counted:
    """The events of one request. Where an upstream tells no running count, an event is as many tokens as it has log-probs, or one."""

    asked: Asked
    ledger: Ledger
    room: Reservation
    n: int  # completions
    limit: int | None  # tokens of each
    told_prompt: bool = False
    _made: dict[int, int] = field(default_factory=dict)  # by choice
    _most: int = 0  # of any choice
    _ended: set[int] = field(default_factory=set)
    _head: dict[str, Any] = field(default_factory=dict)  # what all chunks begin with
    _shapes: list[Shape] = field(default_factory=list)  # the last one first
    _unbooked: dict[Line, int] = field(default_factory=dict)
    _since: int = 0  # tokens since they were last booked

    def void(self) -> None:
        """What came of a try that failed is a retry's, and the next one has a room of its own."""
        self.settle()
        self.room.move("retry")
        self.room.close()

    def hand_known(self, received: bytes) -> bytes | None:
        """What the caller gets of bytes that are one event, like one before it but for its text; None: they are not."""
        for shape in self._shapes:
            out = shape.fill(received)
            if out is not None:
                self._commit(shape.line, 1, shape.index)
                return out
        return None

    def hand(self, data: bytes) -> bytes:
        """Count an event, and give what the caller is to get of it; nothing where it is not for the caller."""
        sent = b"data: " + data + b"\n\n"
        known = self.hand_known(sent)
        if known is not None:
            return known
        told = read_object(data)
        running, before = isinstance(told.get("usage"), dict), self._total
        changed = self.look(told)
        if changed is None:
            return b""
        if not running and self._total - before == 1:
            found = learn(data, told, changed=changed)
            if found is not None:
                self._shapes = [found, *self._shapes[: SHAPES - 1]]
        return write_event(told) if changed or b"\n" in data else sent

    def look(self, told: dict[str, Any]) -> bool | None:
        """Count an event. True: it was changed; None: it is not for the caller."""
        check_error(told)
        usage, choices = told.get("usage"), told.get("choices")
        if not choices:
            if not isinstance(usage, dict):
                return False
            self.book_usage(usage)
            return False if self.asked.wants_usage else None
        self._head = self._head or {name: told[name] for name in ("id", "created", "model", "object") if name in told}
        for choice in choices if isinstance(choices, list) else ():
            self._count(choice)
        changed = name_reasoning(told, "delta")
        if isinstance(usage, dict):  # a running count, which the caller did not ask for
            made = usage.get("completion_tokens")
            if isinstance(made, int) and made > self._total and len(self._made) == 1:
                self._commit("answer", made - self._total, next(iter(self._made)))
            del told["usage"]
            changed = True
        return changed

    def book_usage(self, usage: Any) -> None:
        """The upstream's own count is the true one."""
        self.settle()
        if not isinstance(usage, dict) or self.told_prompt:
            return
        made, prompt = usage.get("completion_tokens"), usage.get("prompt_tokens")
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        self.told_prompt = True
        self.ledger.tell_prompt(
            prompt if isinstance(prompt, int) else None, cached if isinstance(cached, int) else None
        )
        if isinstance(made, int) and made != self._total:
            self.room.commit("answer", made - self._total)

    @property
    def ended(self) -> bool:
        """Whether every completion has told how it ended."""
        return len(self._ended) >= max(self.n, len(self._made))

    @property
    def over(self) -> bool:
        """Whether a completion is longer than it may be: its upstream does not keep to the limit."""
        if self.limit is None or self._most <= self.limit:
            return False
        return any(made > self.limit for index, made in self._made.items() if index not in self._ended)

    def cut(self) -> bytes:
        """The event that ends what is cut here."""
        nothing: dict[str, Any] = {"delta": {}} if isinstance(self.asked, ChatAsked) else {"text": ""}
        open_ones = sorted(set(self._made) - self._ended)
        choices = [{"index": index, "finish_reason": "length", **nothing} for index in open_ones]
        return write_event(self._head | {"choices": choices})

    def last(self) -> bytes:
        """The usage by our own count, where the caller wants one and the upstream told none."""
        if self.told_prompt or not self.asked.wants_usage:
            return b""
        return write_event(self._head | {"choices": [], "usage": self.usage()})

    def usage(self) -> dict[str, Any]:
        self.settle()
        spent = self.ledger.spent
        return {
            "prompt_tokens": spent.prompt or 0,
            "completion_tokens": spent.generated,
            "total_tokens": (spent.prompt or 0) + spent.generated,
            "completion_tokens_details": {"reasoning_tokens": spent.thinking},
        }

    @property
    def _total(self) -> int:
        return sum(self._made.values())

    def _count(self, choice: Any) -> None:
        if not isinstance(choice, dict):
            raise Fault("the upstream sent a choice that is no object", status=502)
        index, delta = choice.get("index"), choice.get("delta")
        index = index if isinstance(index, int) else 0
        said: dict[str, Any] = delta if isinstance(delta, dict) else choice
        thinking = bool(said.get("reasoning") or said.get("reasoning_content"))
        if thinking or said.get("content") or said.get("text") or said.get("tool_calls"):
            logprobs = choice.get("logprobs")
            listed = logprobs.get("content") or logprobs.get("tokens") if isinstance(logprobs, dict) else None
            tokens = len(listed) if isinstance(listed, list) and listed else 1
            self._commit("thinking" if thinking else "answer", tokens, index)
        if choice.get("finish_reason") is not None:
            self._ended.add(index)

    def _commit(self, line: Line, tokens: int, index: int) -> None:
        self._made[index] = made = self._made.get(index, 0) + tokens
        self._most = max(self._most, made)
        self._unbooked[line] = self._unbooked.get(line, 0) + tokens
        self._since += tokens
        if self._since >= BOOKED:
            self.settle()

    def settle(self) -> None:
        """Book what was counted."""
        for line, tokens in self._unbooked.items():
            self.room.commit(line, tokens)
        self._unbooked.clear()
        self._since = 0

    def close(self, *, done: bool, asked: bool) -> None:
        """Give the rest of the room back. Tokens of a reply that nobody got are cancelled ones; `asked`: the upstream was."""
        self.settle()
        if not done:
            self.room.move("cancelled")
        if asked and not self.told_prompt:
            self.ledger.tell_prompt(None, None)
        self.room.close()


def read_object(data: bytes) -> dict[str, Any]:
    try:
        told = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise Fault("the upstream sent an event that is not JSON", status=502) from problem
    if not isinstance(told, dict):
        raise Fault("the upstream sent an event that is no object", status=502)
    return told


def check_error(told: Mapping[str, Any]) -> None:
    """Raise the error that an event or a whole reply tells of."""
    error = told.get("error")
    if not error:
        return
    code = error.get("code") if isinstance(error, dict) else None
    said = describe_error(json.dumps(told).encode())
    if isinstance(code, int) and is_final(code):
        raise Refused(f"the upstream refused the request: {said}", status=code, said=said)
    raise Fault(f"the upstream broke off: {said}", status=502)


def name_reasoning(told: Mapping[str, Any], part: str) -> bool:
    """Both names for the reasoning, where there is one; whether anything was changed."""
    changed = False
    choices = told.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        said = choice.get(part) if isinstance(choice, dict) else None
        if not isinstance(said, dict):
            continue
        one, other = said.get("reasoning"), said.get("reasoning_content")
        if isinstance(one, str) and other is None:
            said["reasoning_content"], changed = one, True
        elif isinstance(other, str) and one is None:
            said["reasoning"], changed = other, True
    return changed
