"""Text out of tokens as they come: never half a character, never part of a text that ends the completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.models.language_model import Tokens

BROKEN = "\ufffd"  # what a decoder writes for bytes that are no character yet
LONGEST = 4  # bytes, and so at most tokens, of a character: more that are broken will never be one


@dataclass(frozen=True, slots=True)
class Grown:
    text: str  # what is new
    stopped_at: int | None = (
        None  # how many of the tokens just added belong to the completion, where a stop text ended it
    )


class GrowingText:
    """The text of one completion. It is held back while its end may still become a character, or a stop text.

    Only the tokens since the last whole character, and those before them that decide how they are written, are decoded again.
    """

    def __init__(self, tokens: Tokens, stop: Sequence[str] = ()) -> None:
        self._tokens, self._stop = tokens, tuple(text for text in stop if text)
        self._ids: list[int] = []
        self._before = 0  # tokens from here on are decoded
        self._read = 0  # tokens up to here have been read
        self._held = ""  # read, and not told

    def add(self, ids: Sequence[int], *, last: bool) -> Grown:
        """`last`: no more tokens come, so nothing is held back."""
        if not self._stop:
            self._ids += ids
            self._take(force=last)
            return Grown(self._tell(keep=0))
        # One by one: which token completes a stop text must not depend on the pieces.
        for place, token in enumerate(ids):
            self._ids.append(token)
            self._take(force=last and place == len(ids) - 1)
            found = [at for text in self._stop if (at := self._held.find(text)) >= 0]
            if found:
                return Grown(self._held[: min(found)], place + 1)
        if last and not ids:
            self._take(force=True)
        return Grown(self._tell(keep=0 if last else self._may_begin()))

    def _take(self, *, force: bool) -> None:
        """Read what has become whole characters."""
        known = self._tokens.decode(self._ids[self._before : self._read])
        end = len(self._ids)
        whole = self._tokens.decode(self._ids[self._before : end])
        if whole.endswith(BROKEN) and not force:
            earlier = range(end - 1, max(self._read, end - LONGEST) - 1, -1)
            texts = ((at, self._tokens.decode(self._ids[self._before : at])) for at in earlier)
            end, whole = next((found for found in texts if not found[1].endswith(BROKEN)), (end, whole))
        if len(whole) > len(known):
            self._held += whole[len(known) :]
            self._before, self._read = self._read, end

    def _tell(self, *, keep: int) -> str:
        told = self._held[: len(self._held) - keep]
        self._held = self._held[len(told) :]
        return told

    def _may_begin(self) -> int:
        """Characters at the end with which a stop text may begin."""
        most = min(len(self._held), max(map(len, self._stop)) - 1)
        ends = (n for n in range(most, 0, -1) if any(text.startswith(self._held[-n:]) for text in self._stop))
        return next(ends, 0)
