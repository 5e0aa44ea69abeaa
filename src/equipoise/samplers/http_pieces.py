"""Events of one streamed completion as chunks, with every token counted once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from equipoise.base import Chunk
from equipoise.wire import Event, Usage, join_tool_calls, read_finish

PATIENCE = 8  # pieces of text without log-probs after which a server that was asked for them sends none


@dataclass(slots=True)
class Pieces:
    """One try at one completion: what has come of it so far.

    Tokens are counted by the server where it does so as it goes, else by log-probs, else one for each piece of text; the
    server's count at the end corrects that, and the difference comes with the last chunk.
    """

    index: int
    top_logprobs: int | None
    restart: bool = False  # an earlier try was told of: the first chunk takes it back
    made: int = 0  # tokens told so far
    thought: int = 0
    usage: Usage | None = None
    finish: str | None = None  # the server's word
    told: bool = False  # something was handed out
    cut: bool = False  # it went beyond its limit and was ended here
    _texts: int = 0
    _with_logprobs: int = 0
    _in_thinking: bool = False
    _counted_at_end: bool = False
    _tool_calls: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> Chunk | None:
        """What these events hold, as one chunk; None where that is nothing."""
        events = list(events)
        made, thought = self.made, self.thought
        for event in events:
            self._count(event)
        text = "".join(event.text for event in events)
        thinking = "".join(event.thinking for event in events)
        if not text and not thinking and self.made == made:
            return None
        return self._chunk(
            text=text, thinking=thinking, n_tokens=self.made - made, n_thinking=self.thought - thought, of=events
        )

    def close(self) -> Chunk:
        """The last chunk: how it ended, and what the server's own count adds or takes away."""
        made, thought = self.made, self.thought
        usage = self.usage or Usage()
        if self._counted_at_end and usage.generated:
            self.made = usage.generated
        self.thought = min(self.thought if usage.thinking is None else usage.thinking, self.made)
        finish, error = read_finish(self.finish or "stop")
        return self._chunk(
            n_tokens=self.made - made,
            n_thinking=self.thought - thought,
            prompt_tokens=usage.prompt,
            cached_tokens=usage.cached,
            finish=finish,
            error=error,
            tool_calls=join_tool_calls(self._tool_calls),
        )

    @property
    def lacks_logprobs(self) -> bool:
        """They were asked for, and there is text enough to know that none come."""
        ended = self.finish is not None and self._texts > 0
        return self.top_logprobs is not None and not self._with_logprobs and (ended or self._texts >= PATIENCE)

    def _count(self, event: Event) -> None:
        if event.finish is not None:
            self.finish = event.finish
        n = len(event.tokens.texts) if event.tokens is not None else 0
        has_text = bool(event.text or event.thinking)
        self._texts += has_text
        self._with_logprobs += n > 0
        n = n or has_text
        if event.usage is not None:
            self.usage = event.usage
            self._counted_at_end = self.finish is not None
            # Some servers send zeros until the end: a running count is believed where it is not behind.
            n = max(n, (event.usage.generated or 0) - self.made) if self.finish is None else n
        self.made += n
        self._tool_calls += event.tool_calls
        # A token without text, like the end of the thinking, belongs to what came before it.
        if has_text:
            self._in_thinking = bool(event.thinking)
        if event.thinking and event.text:
            self.thought += round(n * len(event.thinking) / (len(event.thinking) + len(event.text)))
            self._in_thinking = False
        elif self._in_thinking:
            self.thought += n

    def _chunk(self, *, of: Sequence[Event] = (), **fields: Any) -> Chunk:
        restart, self.restart, self.told = self.restart, False, True
        return Chunk(self.index, restart=restart, **self._token_lists(of), **fields)

    def _token_lists(self, events: Sequence[Event]) -> dict[str, Any]:
        """None where text came without log-probs. Tokens that have no text of their own may lack them: a list is then shorter."""
        parts = [event.tokens for event in events if event.tokens is not None]
        bare = any(event.tokens is None and (event.text or event.thinking) for event in events)
        if bare or not self._with_logprobs or self.top_logprobs is None:
            return {}
        ids = None if any(part.ids is None for part in parts) else [i for part in parts for i in part.ids or ()]
        logprobs = [value for part in parts for value in part.logprobs]
        confidences = [token_confidence(top, self.top_logprobs) for part in parts for top in part.top_logprobs]
        return {
            "token_ids": ids,
            "token_texts": [text for part in parts for text in part.texts],
            "logprobs": None if None in logprobs else logprobs,
            "token_confidences": None if None in confidences else confidences,
        }


def token_confidence(top_logprobs: Sequence[float], k: int) -> float | None:
    """C = −(1/k) Σ_{j≤k} ln P(j) over the k likeliest tokens (https://arxiv.org/abs/2508.15260).

    A server may tell k + 1, the sampled token with them: the least likely is left out. Where it tells fewer, since it has one
    entry for all tokens of the same text, the mean is over those. None: it told none.
    """
    likeliest = sorted(top_logprobs, reverse=True)[:k]
    return -sum(likeliest) / len(likeliest) if likeliest else None
