"""A request that asks for more tokens than its prompt leaves room for, sent once more with a limit that fits.

vLLM and SGLang refuse prompt + max_tokens beyond their context, where llama.cpp writes up to its end. Their refusal says how much room
there is: the completion then ends there, with finish "length", as one of a model in this process does.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from equipoise.samplers.http_draw import Response, TooLong

Post = Callable[[str, Mapping[str, object]], Awaitable[Response]]

_TOLD = tuple(
    re.compile(words, re.IGNORECASE)
    for words in (
        # OpenAI, and vLLM before 0.9
        r"context length is (?P<context>\d+) tokens.{1,3}however,? you requested \d+ tokens \((?P<prompt>\d+) in (the|your) (messages|prompt)",
        # vLLM 0.9 to 0.14
        r"context length is (?P<context>\d+) tokens and your request has (?P<prompt>\d+) input tokens",
        # vLLM of January 2026
        r"passed (?P<prompt>\d+) input tokens and requested \d+ output tokens\. However, the model's context length is only (?P<context>\d+) tokens",
        # vLLM since. A prompt is read only as far as it must be to know that it is too long, and then its length is not known.
        r"context length is (?P<context>\d+) tokens\. However, you requested \d+ output tokens and your prompt contains (?P<least>at least )?(?P<prompt>\d+) input tokens",
        # SGLang, whose releases differ in whether the last token may be used
        r"(?P<spare>)context length of (?P<context>\d+) tokens\. You requested a total of \d+ tokens: (?P<prompt>\d+) tokens from the input",
    )
)


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens that a prompt leaves for a completion. None: less than was asked for, and nobody said how many."""

    tokens: int | None


def read_room(said: str) -> Room | None:
    """What a server's refusal says of the room that is left; None where it says nothing of it, or that there is none."""
    for words in _TOLD:
        found = words.search(said)
        if found is not None:
            told = found.groupdict()
            left = int(told["context"]) - int(told["prompt"]) - ("spare" in told)
            return Room(None if told.get("least") else left) if left > 0 else None
    return None


def fit_limit(body: Mapping[str, object], limit_field: str, room: Room | None) -> Mapping[str, object] | None:
    """The request with a limit that fits; None where there is none that is lower than it had."""
    asked = body.get(limit_field)
    if room is None or not isinstance(asked, int):
        return None
    if room.tokens is not None:
        return {**body, limit_field: room.tokens} if room.tokens < asked else None
    # A chat without a limit gets the rest of the context, which is less than was asked for. A text would get 16 tokens.
    return {name: value for name, value in body.items() if name != limit_field} if "messages" in body else None


async def post_fitting(post: Post, path: str, body: Mapping[str, object], *, limit_field: str) -> Response:
    """Post a request, and once more where only its limit was too high."""
    try:
        return await post(path, body)
    except TooLong as full:
        fitting = fit_limit(body, limit_field, read_room(full.said))
        if fitting is None:
            raise
    return await post(path, fitting)
