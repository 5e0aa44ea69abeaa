"""A request body, checked where it comes in. Fields that are not named here go to the upstream as they are."""

from __future__ import annotations

import json
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from equipoise.gateway.refusals import Refusal
from equipoise.gateway.settings import Limits
from equipoise.wire import one_line

OWN = "equipoise"  # the field of a request that is for the gateway: extra_body={"equipoise": {…}}
# What is not handed on as an extra field of the sampling, since the gateway sets it or has read it.
READ = {
    OWN, "model", "messages", "prompt", "n", "stream", "stream_options", "max_tokens", "max_completion_tokens",
    "temperature", "top_p", "stop", "seed", "logprobs", "top_logprobs",
}  # fmt: skip

Count = Annotated[int, Field(ge=1, le=10_000_000)]
Words = Annotated[str, Field(max_length=1000)]


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class Wanted(BaseModel):
    """The field `equipoise` of a request: how this one is to be searched, within the operator's limits."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    strategy: str | None = None
    budget: Count | None = None  # generated tokens of the whole request
    seconds: Annotated[float, Field(gt=0)] | None = None
    progress: bool = True  # lines about the search as reasoning, in a stream
    cache: bool = True  # False: neither take the reply from the cache nor keep it there


class StreamOptions(Loose):
    include_usage: bool | None = None


class Common(Loose):
    """What both endpoints take."""

    model: Words | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    stop: Words | Annotated[list[Words], Field(max_length=64)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    equipoise: Wanted | None = None

    @property
    def limit(self) -> int | None:
        """Tokens of one completion, as the caller said."""
        return self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def extra(self) -> dict[str, Any]:
        return {name: value for name, value in (self.model_extra or {}).items() if name not in READ}


class ChatAsked(Common):
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: Words | None = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def completions(self) -> int:
        """How many the upstream makes of this request, handed through."""
        return self.n or 1

    @property
    def top(self) -> int | None:
        """Likeliest tokens to tell at each position; None: no log-probs."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def extra(self) -> dict[str, Any]:
        more = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return super().extra | more


class TextAsked(Common):
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None

    @property
    def completions(self) -> int:
        many = isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
        return max(self.n or 1, self.best_of or 1) * (len(self.prompt) if many else 1)

    @property
    def top(self) -> int | None:
        return self.logprobs

    @property
    def extra(self) -> dict[str, Any]:
        more = {} if self.best_of is None else {"best_of": self.best_of}
        return super().extra | more


Asked = ChatAsked | TextAsked


def read_body(body: bytes, kind: type[Asked], limits: Limits) -> tuple[Asked, dict[str, Any]]:
    """The request, and its fields as they came."""
    try:
        raw = json.loads(body.decode(), parse_constant=_no_constant)
    except RecursionError:
        raise Refusal(400, "the body is nested too deeply to be read", code="invalid_json") from None
    except ValueError as problem:
        raise Refusal(400, f"the body is not JSON: {one_line(str(problem), 100)}", code="invalid_json") from None
    if not isinstance(raw, dict):
        raise Refusal(400, "the body is a JSON object, and something else was sent", code="invalid_json")
    try:
        asked = kind.model_validate(raw)
    except ValidationError as problem:
        raise _tell(problem) from None
    if asked.completions > limits.n:
        raise Refusal(
            400, f"{asked.completions} answers were asked for: this gateway gives {limits.n} at most", param="n"
        )
    if (asked.limit or 1) > limits.max_tokens:
        raise Refusal(
            400,
            f"{asked.limit} tokens of a completion were asked for: this gateway allows {limits.max_tokens} at most",
            param="max_tokens",
        )
    return asked, raw


def _tell(problem: ValidationError) -> Refusal:
    first = problem.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part.replace("_", "").isalnum())
    return Refusal(400, f"{one_line(where, 100)}: {one_line(first['msg'], 200)}", param=one_line(where, 100) or None)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")
