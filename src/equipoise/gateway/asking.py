"""A request as a question: how it is sampled, and what counts as its answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from equipoise.base import Answer, Completion, Prompt, Question, Sampling
from equipoise.gateway.asked import Asked, ChatAsked
from equipoise.gateway.orders import Order
from equipoise.gateway.refusals import Refusal
from equipoise.text.answers import canonical, read_answer
from equipoise.text.thinking import split_thinking

MAX_PLAIN = 80  # characters of a line that may be an answer though nothing says so
MAX_READ = 1_000_000  # characters at the end of a text in which an answer is looked for


def make_questions(asked: Asked, order: Order, *, id: str) -> list[Question]:
    """One for each of the n answers, alike but for the seed."""
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    how = Sampling(
        max_tokens=order.max_tokens or 1,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        stop=asked.stops,
        top_logprobs=asked.top,
        extra=asked.extra,
    )
    read = read_json if _wants_json(asked) else read_reply
    prompt = _prompt(asked)
    return [Question(id, prompt, _completed(read), how, seed=_seed(seed, i)) for i in range(order.n)]


def read_reply(completion: Completion) -> Answer | None:
    r"""The calls of tools, in any order of their arguments; else what the text states (`\boxed{…}`, "the answer is …"), or a short line."""
    if completion.tool_calls:
        return Answer(json.dumps([_call(call) for call in completion.tool_calls], sort_keys=True))
    text = (completion.text or "")[-MAX_READ:]
    stated = read_answer(text)
    if stated is not None:
        return stated
    line = split_thinking(text).answer
    short = canonical(line) if line and "\n" not in line and len(line) <= MAX_PLAIN else None
    return Answer(short) if short else None


def read_json(completion: Completion) -> Answer | None:
    """The whole text as JSON, whatever the order of its fields."""
    if completion.tool_calls:
        return read_reply(completion)
    try:
        return Answer(json.dumps(json.loads(split_thinking(completion.text or "").answer), sort_keys=True))
    except (ValueError, RecursionError):
        return None


def _completed(read: Callable[[Completion], Answer | None]) -> Callable[[Completion], Answer | None]:
    """None where the answer reaches the end of a text that ran into its limit: more was to come."""

    def whole(completion: Completion) -> Answer | None:
        answer = read(completion)
        if answer is None or completion.finish not in ("length", "budget"):
            return answer
        reaches = answer.span is None or answer.span[1] >= len((completion.text or "")[-MAX_READ:].rstrip())
        return None if reaches else answer

    return whole


def _call(call: Any) -> list[Any]:
    function = call.get("function") or {}
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (ValueError, RecursionError):
        arguments = function.get("arguments")
    return [function.get("name"), arguments]


def _wants_json(asked: Asked) -> bool:
    form = asked.extra.get("response_format")
    return isinstance(form, dict) and form.get("type") in ("json_object", "json_schema")


def _prompt(asked: Asked) -> Prompt:
    if isinstance(asked, ChatAsked):
        return asked.messages
    prompt = asked.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise Refusal(400, "a strategy answers one prompt in words: send one text, or use single", param="prompt")
    return prompt


def _seed(seed: int, number: int) -> int:
    """The caller's own for the first answer."""
    if number == 0:
        return seed
    return int.from_bytes(blake2b(f"{seed}/answer/{number}".encode(), digest_size=4).digest()) >> 1
