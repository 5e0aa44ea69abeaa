"""Events of a streamed reply as the whole reply they stand for, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from equipoise.wire import join_tool_calls

_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")


@dataclass(slots=True)
class Joined:
    """Takes chunks of one reply, of all its choices, and gives the reply."""

    chat: bool
    head: dict[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] | None = None
    _choices: dict[int, dict[str, Any]] = field(default_factory=dict)
    _calls: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)

    def add(self, told: Mapping[str, Any]) -> None:
        if not self.head:
            self.head = {name: value for name, value in told.items() if name not in ("choices", "usage", "object")}
        for choice in told.get("choices") or ():
            self._add(choice)

    def reply(self) -> dict[str, Any]:
        for index, calls in self._calls.items():
            self._choices[index]["message"]["tool_calls"] = [dict(call) for call in join_tool_calls(calls) or ()]
        kind = "chat.completion" if self.chat else "text_completion"
        choices = [self._choices[index] for index in sorted(self._choices)]
        return {**self.head, "object": kind, "choices": choices, "usage": self.usage}

    def _add(self, choice: Mapping[str, Any]) -> None:
        index = choice.get("index") or 0
        whole = self._choices.setdefault(index, self._empty(index))
        if choice.get("finish_reason") is not None:
            whole["finish_reason"] = choice["finish_reason"]
        if isinstance(choice.get("logprobs"), dict):
            whole["logprobs"] = _longer(whole["logprobs"], choice["logprobs"])
        if not self.chat:
            whole["text"] += choice.get("text") or ""
            return
        delta, message = choice.get("delta") or {}, whole["message"]
        for name in _TEXTS:
            if isinstance(delta.get(name), str):
                message[name] = (message.get(name) or "") + delta[name]
        if delta.get("tool_calls"):
            self._calls.setdefault(index, []).extend(delta["tool_calls"])

    def _empty(self, index: int) -> dict[str, Any]:
        said: dict[str, Any] = {"message": {"role": "assistant", "content": None}} if self.chat else {"text": ""}
        return {"index": index, "finish_reason": None, "logprobs": None} | said


def as_chunks(reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A whole reply as events, from an upstream that does not stream: what it says, and its usage."""
    first = {name: value for name, value in reply.items() if name not in ("usage", "choices")}
    if str(first.get("object", "")).startswith("chat"):
        first["object"] = "chat.completion.chunk"
    choices = reply.get("choices")
    said = [
        {"delta" if name == "message" else name: _as_delta(value) for name, value in choice.items()}
        for choice in (choices if isinstance(choices, list) else ())
        if isinstance(choice, dict)
    ]
    usage = reply.get("usage")
    return [{**first, "choices": said}, *([{**first, "choices": [], "usage": usage}] if usage else [])]


def _as_delta(value: Any) -> Any:
    """A message whose calls are numbered, as those of a stream are."""
    calls = value.get("tool_calls") if isinstance(value, dict) else None
    if not isinstance(calls, list):
        return value
    return {**value, "tool_calls": [{"index": i, **call} for i, call in enumerate(calls) if isinstance(call, dict)]}


def _longer(whole: dict[str, Any] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of log-probs, put one behind the other."""
    if whole is None:
        return dict(more)
    joined = dict(whole)
    for name, value in more.items():
        known = joined.get(name)
        joined[name] = known + value if isinstance(known, list) and isinstance(value, list) else known or value
    return joined
