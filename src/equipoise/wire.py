"""OpenAI's JSON and our nouns: what is sent for a completion, and what comes back, whole or as server-sent events.

Pure functions. The fields beyond OpenAI's were read in vLLM and SGLang of August 2026 and llama.cpp of October 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, get_args

from equipoise.base import Finish, Prompt, Sampling
from equipoise.errors import UsageError, unknown_name

Dialect = Literal["vllm", "sglang", "llama.cpp", "openai"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)

MAX_EVENT = 1024 * 1024  # bytes of one server-sent event
DONE = b"[DONE]"

# What a server does by itself unless it is told not to: llama.cpp keeps 40 tokens and min_p 0.05, vLLM and SGLang take what the
# model's generation_config.json says. `Sampling` is then not what was sampled.
_NEUTRAL: Mapping[Dialect, Mapping[str, Any]] = {
    "vllm": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    "sglang": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    "llama.cpp": {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0},
    "openai": {},
}
# How each continues an assistant's message. OpenAI itself starts a new one.
_CONTINUE: Mapping[Dialect, Mapping[str, Any] | None] = {
    "vllm": {"add_generation_prompt": False, "continue_final_message": True},
    "sglang": {"continue_final_message": True},
    "llama.cpp": {},
    "openai": None,
}
# How a token is chosen, beyond OpenAI's fields, and who can be told: a server that does not know a field passes it over in silence.
# llama.cpp truncates before the temperature, the others after it.
_DECODING: Mapping[str, tuple[Dialect, ...]] = {
    "top_n_sigma": ("llama.cpp", "openai"),  # of an unknown server it is the user who knows
    "edt": (),
    "repel": (),
    "repel_first": (),
    "order": (),
    "alpha": (),
}
_OURS = ("model", "messages", "prompt", "n", "stream", "stream_options")  # not to be replaced by the sampling's `extra`

# Words for an end that have one of ours. Others are a stop; those in _FAILED are no end of an answer.
_FINISH: Mapping[str, Finish] = {
    "length": "length",
    "repetition": "length",  # vLLM cut a loop
    "tool_calls": "tool",
    "function_call": "tool",
}
_FAILED = ("abort", "error", "content_filter")

# How a server says that a prompt leaves no room for an answer: OpenAI's code and llama.cpp's type, and the words of those who have neither.
_NO_ROOM = ("context_length_exceeded", "exceed_context_size_error")
_NO_ROOM_WORDS = re.compile(
    r"maximum context length is \d+ tokens"  # OpenAI, and vLLM in most releases
    r"|context length is only \d+ tokens"  # vLLM, some releases of 2026
    r"|longer than the maximum model length of \d+"  # vLLM, of a prompt in tokens
    r"|longer than the model's context length \(\d+ tokens\)"  # SGLang
    r"|exceeds the model's maximum context length of \d+ tokens"  # SGLang, with max_tokens
    r"|exceeds the available context size",  # llama.cpp before it had the type
    re.IGNORECASE,
)


class Malformed(ValueError):
    """What came does not follow the protocol."""


@dataclass(frozen=True, slots=True)
class Request:
    path: str  # after the base address
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """The server's own count. None: it did not say."""

    prompt: int | None = None
    cached: int | None = None
    generated: int | None = None
    thinking: int | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one event, where log-probs were told: one item in every list for each."""

    texts: list[str]
    logprobs: list[float | None]
    top_logprobs: list[list[float]]
    ids: list[int] | None = None
    entries: list[Mapping[str, Any]] | None = None  # as they came, in a chat


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream, or a whole reply, of one completion."""

    text: str = ""
    thinking: str = ""
    tokens: Tokens | None = None
    finish: str | None = None  # the server's word
    usage: Usage | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()  # in a stream: pieces of them, for `join_tool_calls`
    error: str | None = None
    error_code: int | None = None
    no_room: bool = False  # the error is that the prompt leaves no room for an answer


# --- out


def write_request(
    prompt: Prompt,
    how: Sampling,
    *,
    model: str,
    seed: int,
    dialect: Dialect,
    limit_field: str = "max_tokens",
    thinking_field: str | None = None,
) -> Request:
    """A streamed request for one completion: messages to chat/completions, a text to completions."""
    body: dict[str, Any] = {
        "model": model,
        limit_field: how.max_tokens,
        "temperature": how.temperature,
        "top_p": how.top_p,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_NEUTRAL[dialect],
    }
    # A count with every event: then the tokens of a completion that is cancelled are known exactly.
    if dialect in ("vllm", "sglang"):
        body["stream_options"]["continuous_usage_stats"] = True
    elif dialect == "llama.cpp":
        body["timings_per_token"] = True
    if how.stop:
        body["stop"] = list(how.stop)
    if how.thinking_budget is not None:
        if thinking_field is None:
            raise UsageError(
                f"a thinking budget of {how.thinking_budget} tokens was asked for, but not how this server takes one: "
                "name its field, thinking_field='thinking_token_budget' for vLLM, or leave the budget out"
            )
        body[thinking_field] = how.thinking_budget
    if isinstance(prompt, str):
        body["prompt"] = prompt
        if how.top_logprobs is not None:
            body["logprobs"] = how.top_logprobs
    else:
        body["messages"] = [dict(message) for message in prompt]
        if how.top_logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": how.top_logprobs}
        if prompt and prompt[-1].get("role") == "assistant":
            body |= _continuing(dialect)
    taken = sorted(set(how.extra) & {*_OURS, limit_field})
    if taken:
        raise UsageError(f"the extra sampling fields {', '.join(taken)} are set by the sampler itself: leave them out")
    for name in how.extra:
        if dialect not in _DECODING.get(name, DIALECTS):
            knows = ", ".join(_DECODING[name]) or "none"
            raise UsageError(
                f"{name} was asked for, and a server of dialect '{dialect}' has no such setting (known to {knows}): "
                "leave it out, or use a model in this process"
            )
    body |= how.extra
    path = "completions" if isinstance(prompt, str) else "chat/completions"
    return Request(path, {name: value for name, value in body.items() if value is not None})


def _continuing(dialect: Dialect) -> Mapping[str, Any]:
    fields = _CONTINUE[dialect]
    if fields is None:
        raise UsageError(
            "the last message is the assistant's, to be continued, and a server of dialect 'openai' would start a new one: "
            "use a text prompt, or say dialect='vllm', 'sglang' or 'llama.cpp' if it speaks one of these"
        )
    return fields


# --- in


class EventStream:
    """Bytes as they come in, and out of them the data of every server-sent event that is complete."""

    def __init__(self, longest: int = MAX_EVENT) -> None:
        self._longest = longest
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    @property
    def between(self) -> bool:
        """Whether what comes next begins a line, and an event."""
        return not self._rest and not self._data

    def feed(self, received: bytes) -> list[bytes]:
        # Most reads bring one event and nothing else.
        one_line = received.startswith(b"data: ") and received.endswith(b"}\n\n")
        if one_line and self.between and received.find(b"\n") == len(received) - 2:
            self._check(len(received))
            return [received[6:-2]]
        lines = (self._rest + received).split(b"\n")
        self._rest = lines.pop()
        found = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._size += len(line)
                self._check(self._size)
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data, self._size = [], 0
            else:
                self._check(len(line))
        self._check(len(self._rest))
        return found

    def end(self) -> list[bytes]:
        """What is left when the connection was closed: some servers leave the last empty line out."""
        return self.feed(b"\n\n")

    def _check(self, size: int) -> None:
        if size > self._longest:
            raise Malformed(f"an event of more than {self._longest:,} bytes")


def read_event(data: bytes) -> Event:
    """The first choice of a chunk or of a whole reply; without one, its usage or error."""
    reply = _read_object(data)
    error = reply.get("error")
    if error:
        code = error.get("code") if isinstance(error, dict) else None
        told = code if isinstance(code, int) else None
        return Event(error=describe_error(data), error_code=told, no_room=tells_no_room(data))
    usage = _read_usage(reply)
    choices = reply.get("choices")
    if not isinstance(choices, list):
        raise Malformed(f"a reply without choices: {one_line(data.decode(errors='replace'), 80)}")
    if not choices:
        return Event(usage=usage)
    choice = _mapping(choices[0], "choice")
    said = _mapping(choice.get("delta") or choice.get("message") or {}, "delta")
    return Event(
        text=_text(choice.get("text") if "text" in choice else said.get("content")),
        thinking=_text(said.get("reasoning_content") or said.get("reasoning")),
        tokens=_read_tokens(choice.get("logprobs")),
        finish=choice["finish_reason"] if isinstance(choice.get("finish_reason"), str) else None,
        usage=usage,
        tool_calls=tuple(_mapping(call, "tool call") for call in _items(said.get("tool_calls"))),
    )


def read_finish(word: str) -> tuple[Finish, str | None]:
    """Our word for the end of a completion, and what went wrong where it is an error."""
    if word in _FAILED:
        return "error", f"the server ended it with '{one_line(word)}'"
    return _FINISH.get(word, "stop"), None


def join_tool_calls(pieces: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...] | None:
    """Streamed pieces of tool calls as whole ones, in the order of their index."""
    calls: dict[int, dict[str, Any]] = {}
    for place, piece in enumerate(pieces):
        index = piece["index"] if isinstance(piece.get("index"), int) else place
        call = calls.setdefault(index, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = piece.get("id") or call["id"]
        function = _mapping(piece.get("function") or {}, "function")
        for name in ("name", "arguments"):
            call["function"][name] += _text(function.get(name))
    return tuple(calls[index] for index in sorted(calls)) or None


def describe_error(body: bytes) -> str:
    """The server's words in an error reply, in one line."""
    try:
        reply: Any = json.loads(body)
    except (ValueError, RecursionError):
        return one_line(body.decode(errors="replace")) or "no message"
    for _ in range(4):  # {"error": {"message": …}}, {"error": …}, {"message": …}, {"detail": [{"msg": …}]}
        if isinstance(reply, list) and reply:
            reply = reply[0]
        elif isinstance(reply, dict):
            reply = next((reply[name] for name in ("error", "message", "msg", "detail") if reply.get(name)), None)
    return one_line(reply if isinstance(reply, str) else body.decode(errors="replace")) or "no message"


def tells_no_room(body: bytes) -> bool:
    """Whether an error reply says that the prompt leaves no room for an answer, by its code or type or, where these say nothing, its words."""
    try:
        reply: Any = json.loads(body)
    except (ValueError, RecursionError):
        return False
    error = reply.get("error") if isinstance(reply, dict) else None
    if isinstance(error, dict) and any(error.get(name) in _NO_ROOM for name in ("code", "type")):
        return True
    return _NO_ROOM_WORDS.search(describe_error(body)) is not None


def read_models(body: bytes) -> tuple[list[str], Dialect]:
    """The models that a server offers, and which server it is by their owner."""
    listed = _read_object(body).get("data")
    if not isinstance(listed, list):
        raise Malformed("a list of models without data")
    models = [_mapping(model, "model") for model in listed]
    owners = {model.get("owned_by") for model in models}
    known: dict[str, Dialect] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
    dialects: list[Dialect] = [known[owner] for owner in owners if isinstance(owner, str) and owner in known]
    return [model["id"] for model in models if isinstance(model.get("id"), str)], dialects[0] if dialects else "openai"


def check_dialect(name: str) -> Dialect:
    for dialect in DIALECTS:
        if dialect == name:
            return dialect
    raise unknown_name("dialect", name, ("auto", *DIALECTS))


def one_line(text: str, longest: int = 300) -> str:
    """Printable, without line breaks, and not longer than this: text of a server's in a message of ours."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * longest]).split())
    return words if len(words) <= longest else words[: longest - 1] + "…"


def _read_object(data: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise Malformed(f"not JSON: {one_line(data.decode(errors='replace'), 80)}") from problem
    return dict(_mapping(reply, "reply"))


def _read_usage(reply: Mapping[str, Any]) -> Usage | None:
    usage, timings = reply.get("usage"), reply.get("timings")
    if isinstance(usage, dict):
        before, after = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
        thinking = _count(after.get("reasoning_tokens")) if isinstance(after, dict) else None
        return Usage(
            prompt=_count(usage.get("prompt_tokens")),
            cached=_count(before.get("cached_tokens")) if isinstance(before, dict) else None,
            generated=_count(usage.get("completion_tokens")),
            # SGLang has it one level up, where 0 may also mean that nobody counted.
            thinking=thinking or _count(usage.get("reasoning_tokens")) or None,
        )
    if isinstance(timings, dict) and "predicted_n" in timings:  # llama.cpp, with every event
        fresh, cached = _count(timings.get("prompt_n")), _count(timings.get("cache_n"))
        whole = None if fresh is None or cached is None else fresh + cached
        return Usage(prompt=whole, cached=cached, generated=_count(timings["predicted_n"]))
    return None


def _read_tokens(logprobs: Any) -> Tokens | None:
    """Both forms: a list of tokens under `content`, and the parallel lists of the older completions API."""
    if not isinstance(logprobs, dict):
        return None
    if isinstance(logprobs.get("content"), list):
        entries = [_mapping(entry, "log-prob") for entry in logprobs["content"]]
        ids = [entry.get("id") for entry in entries]
        return Tokens(
            texts=[_text(entry.get("token")) for entry in entries],
            logprobs=[_logprob(entry.get("logprob")) for entry in entries],
            top_logprobs=[
                _known(_mapping(top, "log-prob").get("logprob") for top in _items(entry.get("top_logprobs")))
                for entry in entries
            ],
            ids=[i for i in ids if isinstance(i, int)] if all(isinstance(i, int) for i in ids) else None,
            entries=entries,
        )
    if isinstance(logprobs.get("token_logprobs"), list):
        texts = [_text(text) for text in _items(logprobs.get("tokens"))]
        sampled = [_logprob(value) for value in logprobs["token_logprobs"]]
        tops = [_known(_mapping(top or {}, "log-prob").values()) for top in _items(logprobs.get("top_logprobs"))]
        tops = tops or [[] for _ in sampled]
        if not len(texts) == len(sampled) == len(tops):
            raise Malformed(
                f"log-probs of {len(sampled)} tokens with {len(texts)} texts and {len(tops)} lists of others"
            )
        return Tokens(texts, sampled, tops)
    return None


def _known(values: Iterable[Any]) -> list[float]:
    return [number for number in map(_logprob, values) if number is not None]


def _logprob(value: Any) -> float | None:
    """None for null, and for the infinities and NaN that some servers write."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"a log-prob that is no number: {one_line(repr(value), 40)}")
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Malformed(f"a text that is none: {one_line(repr(value), 40)}")
    return value


def _items(value: Any) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise Malformed(f"a list that is none: {one_line(repr(value), 40)}")
    return value or []


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"a {what} that is no object: {one_line(repr(value), 40)}")
    return value
