"""Our nouns as OpenAI's JSON, the server's direction: whole replies, chunks of a stream, usage. Pure functions.

Reasoning goes out under both names that clients read, `reasoning` and `reasoning_content`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.base import Choice, Completion, Spend
from equipoise.gateway.orders import Order

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
PIECE = 16  # tokens of one chunk of an answer that was decided
PIECE_CHARS = 80

Told = Sequence[Mapping[str, Any]]  # log-probs, an entry for each token
Logprobs = Callable[[Completion], Told | None]

_FINISH = {"stop": "stop", "tool": "tool_calls"}
_BEST = {"stop": 0, "tool": 0, "length": 1, "budget": 1}


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of a reply have in common."""

    id: str
    created: int
    model: str
    chat: bool

    @property
    def first(self) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def chunk(self, index: int, delta: Mapping[str, Any], *, finish: str | None = None, logprobs: Any = None) -> bytes:
        """An event of a stream. A text has no delta, so its content stands alone and reasoning is left out."""
        told = self.first
        choice: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": logprobs}
        if self.chat:
            told["object"] = "chat.completion.chunk"
            choice["delta"] = dict(delta)
        else:
            choice["text"] = delta.get("content") or ""
        return write_event(told | {"choices": [choice]})

    def usage_chunk(self, usage: Mapping[str, Any]) -> bytes:
        told = self.first | ({"object": "chat.completion.chunk"} if self.chat else {})
        return write_event(told | {"choices": [], "usage": dict(usage)})


def write_event(told: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(told, separators=(",", ":")).encode() + b"\n\n"


def reasoning(text: str) -> dict[str, Any]:
    return {"reasoning": text, "reasoning_content": text}


def shown(choice: Choice) -> Completion | None:
    """The completion that a caller gets: the chosen one; where no answer could be read, the first of those that ended best.

    None: there is nothing to show.
    """
    if choice.chosen is not None:
        return choice.chosen
    found = [
        each for each in choice.drawn if each.finish != "error" and (each.text or each.thinking or each.tool_calls)
    ]
    return min(found, key=lambda each: _BEST.get(each.finish or "", len(_BEST)), default=None)


def finish_of(completion: Completion) -> str:
    """A completion that was given up is one that was cut short."""
    return _FINISH.get(completion.finish or "stop", "length")


def write_reply(
    head: Head, choices: Sequence[Choice], *, logprobs: Logprobs, usage: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole reply. `logprobs` gives those of a completion; None: none are to be told."""
    told = [_answer(head, index, choice, logprobs) for index, choice in enumerate(choices)]
    return head.first | {"choices": told, "usage": dict(usage)}


def _answer(head: Head, index: int, choice: Choice, logprobs: Logprobs) -> dict[str, Any]:
    completion = shown(choice)
    assert completion is not None
    told: dict[str, Any] = {"index": index, "finish_reason": finish_of(completion), "logprobs": None}
    entries = logprobs(completion)
    if entries is not None:
        told["logprobs"] = write_logprobs(entries, chat=head.chat)
    if not head.chat:
        return told | {"text": completion.text or ""}
    message: dict[str, Any] = {"role": "assistant", "content": completion.text or None, "refusal": None}
    if completion.thinking:
        message |= reasoning(completion.thinking)
    if completion.tool_calls:
        message["tool_calls"] = [dict(call) for call in completion.tool_calls]
    else:
        message["content"] = completion.text or ""
    return told | {"message": message}


def stream_answer(head: Head, index: int, choice: Choice, *, logprobs: Logprobs) -> Iterator[bytes]:
    """The chosen completion in pieces, then how it ended."""
    completion = shown(choice)
    assert completion is not None
    entries = logprobs(completion)
    if completion.thinking and head.chat:
        for text in _cut(completion.thinking):
            yield head.chunk(index, reasoning(text))
    for start, stop, text in _pieces(completion):
        told = None if entries is None else write_logprobs(entries[start:stop], chat=head.chat)
        yield head.chunk(index, {"content": text}, logprobs=told)
    for number, call in enumerate(completion.tool_calls or ()):
        yield head.chunk(index, {"tool_calls": [{"index": number, **call}]})
    yield head.chunk(index, {}, finish=finish_of(completion))


def _pieces(completion: Completion) -> Iterator[tuple[int, int, str]]:
    """Runs of tokens with their places, where the tokens spell the text; else runs of characters."""
    text, tokens = completion.text or "", completion.token_texts
    if tokens is not None and "".join(tokens) == text:
        for start in range(0, len(tokens), PIECE):
            stop = min(start + PIECE, len(tokens))
            yield start, stop, "".join(tokens[start:stop])
        return
    whole = len(tokens or ())
    for number, piece in enumerate(_cut(text)):
        yield (0, whole, piece) if number == 0 else (whole, whole, piece)


def _cut(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE_CHARS):
        yield text[start : start + PIECE_CHARS]


def tell_logprobs(completion: Completion, entries: Told | None, top: int) -> Told | None:
    """A row for each token, with `top` alternatives where they were kept; None where the tokens are not known."""
    if entries is not None:
        return [{**entry, "top_logprobs": list(entry.get("top_logprobs") or ())[:top]} for entry in entries]
    if completion.token_texts is None or completion.logprobs is None:
        return None
    rows = zip(completion.token_texts, completion.logprobs, strict=False)
    return [
        {"token": t, "logprob": x, "bytes": list(t.encode("utf-8", "replace")), "top_logprobs": []} for t, x in rows
    ]


def write_logprobs(entries: Told, *, chat: bool) -> dict[str, Any]:
    """In the form of the endpoint. That of texts has no alternatives: they are not kept through a search."""
    if chat:
        return {"content": list(entries), "refusal": None}
    tokens, values = [entry["token"] for entry in entries], [entry["logprob"] for entry in entries]
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": None}


def write_usage(order: Order, choices: Sequence[Choice], spent: Spend, calls: int) -> dict[str, Any]:
    """All tokens that were generated, whatever became of them. A prompt count that is not known is 0 here, and null in the details."""
    kept = sum(completion.n_tokens or 0 for choice in choices if (completion := shown(choice)) is not None)
    prompt = spent.prompt or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": spent.generated,
        "total_tokens": prompt + spent.generated,
        "prompt_tokens_details": {"cached_tokens": spent.cached or 0},
        "completion_tokens_details": {"reasoning_tokens": spent.thinking},
        "x_equipoise": {
            "strategy": order.spec,
            "budget": order.budget,
            "calls": calls,
            "discarded_tokens": max(0, spent.generated - kept),
            "spent": spent.to_dict(),
            "answers": [
                {
                    "answer": None if choice.answer is None else choice.answer.text,
                    "candidates": len(choice.drawn),
                    "ballots": dict(choice.ballots),
                    "abstained": choice.abstained,
                    "tied": list(choice.tied),
                    "stopped_by": choice.stopped_by,
                    "notes": list(choice.notes),
                }
                for choice in choices
            ],
        },
    }
