"""Text and thinking of one completion, apart, out of tokens as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.models.language_model import Tokens
from equipoise.models.thinking import Follow, Marks
from equipoise.samplers.growing_text import GrowingText


@dataclass(frozen=True, slots=True)
class Split:
    """What is new. `stopped_at`: how many of the tokens just added belong to the completion, where a stop text ended it."""

    text: str
    thinking: str = ""
    n_thinking: int = 0
    stopped_at: int | None = None


class SplitText:
    """The marks belong to neither part. A stop text is looked for in each part alone; one that is a mark stops there."""

    def __init__(
        self, tokens: Tokens, stop: Sequence[str] = (), *, marks: Marks | None = None, inside: bool = False
    ) -> None:
        self._text = GrowingText(tokens, stop)
        self._follow = None if marks is None else Follow(marks, inside=inside)
        self._thinking = GrowingText(tokens, stop)
        self._stops = set() if marks is None else {m for m in (marks.start, marks.end) if tokens.decode([m]) in stop}

    def add(self, ids: Sequence[int], *, last: bool) -> Split:
        """`last`: no more tokens come, so nothing is held back."""
        if self._follow is None:
            grown = self._text.add(ids, last=last)
            return Split(grown.text, stopped_at=grown.stopped_at)
        text, thinking, n_thinking = "", "", 0
        for n, token in enumerate(ids, 1):
            place = self._follow.place(token)
            stopped = place == "mark" and token in self._stops
            if place == "text":
                grown = self._text.add([token], last=last and n == len(ids))
                text, stopped = text + grown.text, grown.stopped_at is not None
            elif place == "thinking":
                grown = self._thinking.add([token], last=last and n == len(ids))
                thinking, stopped = thinking + grown.text, grown.stopped_at is not None
                n_thinking += 1
            elif not self._follow.inside:
                thinking += self._thinking.add([], last=True).text
            if stopped:
                return Split(text, thinking, n_thinking, n)
        if last:
            text += self._text.add([], last=True).text
            thinking += self._thinking.add([], last=True).text
        return Split(text, thinking, n_thinking)
