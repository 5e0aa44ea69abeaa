"""What a reply that is handed through has cost so far: its events looked at one by one, and booked as they come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from equipoise.gateway.asked import Asked, ChatAsked
from equipoise.gateway.replies import write_event
from equipoise.infer.ledger import Ledger, Line, Reservation
from equipoise.samplers.http_draw import Fault, Refused, is_final
from equipoise.wire import describe_error


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
    _ended: set[int] = field(default_factory=set)
    _head: dict[str, Any] = field(default_factory=dict)  # what all chunks begin with

    def void(self) -> None:
        """What came of a try that failed is a retry's."""
        self.room.move("retry")
        self._made.clear()
        self._ended.clear()

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
        if self.limit is None:
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
        self._made[index] = self._made.get(index, 0) + tokens
        self.room.commit(line, tokens)


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
