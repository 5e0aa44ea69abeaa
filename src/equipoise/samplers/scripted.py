"""A sampler that says what it is told to: for tests, and for trying a strategy without a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from equipoise.base import Chunk, Draw, Finish, Grade, Prompt, Sampling
from equipoise.errors import UsageError


@dataclass(frozen=True, slots=True)
class Reply:
    """One completion. Its tokens are the text's characters, unless their number is given."""

    text: str
    thinking: str = ""
    n_tokens: int | None = None
    n_thinking: int | None = None
    confidences: Sequence[float] | None = None  # one for each token
    logprobs: Sequence[float] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    restarts: int = 0  # tokens made by a request that failed before this one
    error: str | None = None  # it ends with this error after its tokens
    trace_confidences: dict[str, float] | None = None
    grade: Grade | None = None


Say = Callable[[Prompt, int], Reply | str]  # a prompt and the completion's number → what is said


@dataclass(slots=True)
class Scripted:
    """Completions in turn, a piece of `chunk` tokens at a time. `generated` counts every token that it has made."""

    replies: Sequence[Reply | str] | Say
    chunk: int = 1
    keeps_limits: bool = True  # False: goes on past max_tokens until it is cancelled
    generated: int = 0
    cancelled: int = 0
    prompts: list[Prompt] = field(default_factory=list)

    def draw(self, prompt: Prompt, how: Sampling, *, n: int, seed: int, first: int = 0) -> Draw:
        self.prompts += [prompt] * n
        replies = [_until(self._reply(prompt, first + i), how.stop) for i in range(n)]
        return _ScriptedDraw(self, replies, how.max_tokens)

    def _reply(self, prompt: Prompt, index: int) -> Reply:
        if callable(self.replies):
            said = self.replies(prompt, index)
        elif index < len(self.replies):
            said = self.replies[index]
        else:
            raise UsageError(f"the script has {len(self.replies)} replies, number {index} was asked for")
        return said if isinstance(said, Reply) else Reply(said)


def _until(reply: Reply, stop: Sequence[str]) -> Reply:
    """The reply up to the first stop string, which is left out as servers do. A text with a token count of its own stays whole."""
    found = [at for word in stop if (at := (reply.thinking + reply.text).find(word)) >= 0]
    if not found or reply.n_tokens is not None:
        return reply
    at = min(found)
    return replace(reply, thinking=reply.thinking[:at], text=reply.text[: max(0, at - len(reply.thinking))])


class _ScriptedDraw:
    def __init__(self, sampler: Scripted, replies: Sequence[Reply], max_tokens: int) -> None:
        self._sampler, self._limit = sampler, max_tokens
        self._replies = replies
        self._made = [0] * len(replies)
        self._turn = deque(range(len(replies)))
        self._why: dict[int, Finish] = {}
        self._restarted: set[int] = set()

    def __aiter__(self) -> _ScriptedDraw:
        return self

    def cancel(self, index: int, why: Finish) -> None:
        self._why.setdefault(index, why)

    async def __anext__(self) -> Chunk:
        if not self._turn:
            raise StopAsyncIteration
        index = self._turn.popleft()
        reply, made = self._replies[index], self._made[index]
        if index in self._why:
            self._sampler.cancelled += 1
            return Chunk(index, finish=self._why[index])
        if reply.restarts and index not in self._restarted:
            self._restarted.add(index)
            self._turn.appendleft(index)
            self._sampler.generated += reply.restarts
            return Chunk(index, "x" * reply.restarts, n_tokens=reply.restarts)
        whole = reply.thinking + reply.text
        total = len(whole) if reply.n_tokens is None else reply.n_tokens
        n_thinking = reply.n_thinking if reply.n_thinking is not None else len(reply.thinking)
        until = min(made + self._sampler.chunk, total)
        if self._sampler.keeps_limits:
            until = min(until, self._limit)
        self._made[index] = until
        self._sampler.generated += until - made
        ended = until >= total
        cut = not ended and self._sampler.keeps_limits and until >= self._limit
        finish: Finish | None = ("error" if reply.error else "stop") if ended else "length" if cut else None
        if finish is None:
            self._turn.append(index)
        # A text with a token count of its own comes with the last piece.
        by_character = reply.n_tokens is None
        thought = reply.thinking[made:until] if by_character else reply.thinking if ended else ""
        said = whole[max(made, len(reply.thinking)) : until] if by_character else reply.text if ended else ""
        return Chunk(
            index,
            said,
            thought,
            n_tokens=until - made,
            n_thinking=max(0, min(until, n_thinking) - made),
            token_confidences=None if reply.confidences is None else reply.confidences[made:until],
            logprobs=None if reply.logprobs is None else reply.logprobs[made:until],
            prompt_tokens=reply.prompt_tokens if finish else None,
            cached_tokens=reply.cached_tokens if finish else None,
            restart=made == 0 and index in self._restarted,
            finish=finish,
            error=reply.error if finish == "error" else None,
            trace_confidences=reply.trace_confidences if ended else None,
            grade=reply.grade if ended else None,
        )
