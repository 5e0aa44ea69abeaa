"""Thinking between two tokens: told apart from the answer, and held to a budget. Axes: B rows asked for, R in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.models.language_model import Tokens

if TYPE_CHECKING:
    from equipoise.models.rows import Rows

Place = Literal["text", "thinking", "mark"]


@dataclass(frozen=True, slots=True)
class Marks:
    """The tokens that open and close the thinking."""

    start: int
    end: int

    def open_after(self, ids: Sequence[int]) -> bool:
        """Whether a completion of this prompt begins inside the thinking: it was opened, and not closed."""
        last = next((token for token in reversed(ids) if token in (self.start, self.end)), self.end)
        return last == self.start


def marks_of(tokens: Tokens, thinking: tuple[str, str] | None = None) -> Marks | None:
    """The marks named by `thinking`, by default the tokenizer's own; None where it has none. Each is to be one token."""
    pair = thinking or getattr(tokens, "thinking", None)
    if pair is None:
        return None
    opening = len(tokens.encode(""))  # what a tokenizer begins every text with
    start, end = (tokens.encode(text)[opening:] for text in pair)
    if len(start) != 1 or len(end) != 1 or start == end:
        raise UsageError(
            f"thinking is told by two tokens, and {pair[0]!r} and {pair[1]!r} are {len(start)} and {len(end)} of this tokenizer's: "
            "name two of its special tokens"
        )
    return Marks(start[0], end[0])


class Follow:
    """Where each token of one completion stands. There is one block of thinking: after its end all is text."""

    def __init__(self, marks: Marks, *, inside: bool) -> None:
        self._marks, self.inside, self._closed = marks, inside, False

    def place(self, token: int) -> Place:
        if self.inside:
            if token != self._marks.end:
                return "thinking"
            self.inside, self._closed = False, True
            return "mark"
        if token == self._marks.start and not self._closed:
            self.inside = True
            return "mark"
        return "text"


@dataclass(frozen=True, slots=True)
class Parted:
    thinking: list[int] | None  # None: it did not think
    text: list[int]


def part_thinking(ids: Sequence[int], marks: Marks, *, inside: bool = False) -> Parted:
    """The tokens of a completion without the marks."""
    follow = Follow(marks, inside=inside)
    places = [follow.place(token) for token in ids]
    thought = inside or "mark" in places
    found: dict[Place, list[int]] = {"text": [], "thinking": [], "mark": []}
    for place, token in zip(places, ids, strict=True):
        found[place].append(token)
    return Parted(found["thinking"] if thought else None, found["text"])


class ThinkingCap:
    """Closes the thinking of every row after `budget` tokens of it, the marks not counted: the closing mark is then forced.

    Up to there a row is what it would be without the cap, since its random numbers belong to its positions.
    """

    def __init__(self, marks: Marks, budget: int, inside_B: Sequence[bool], *, device: torch.device | str) -> None:
        if budget < 0:
            raise UsageError(f"a thinking budget is {budget}: use 0 tokens or more, or None for no limit")
        self._marks, self._budget = marks, budget
        self._inside_B = torch.tensor(list(inside_B), device=device)
        self._closed_B = torch.zeros_like(self._inside_B)
        self._thought_B = torch.zeros(len(self._inside_B), dtype=torch.long, device=device)

    def forced(self, rows: Rows) -> Tensor:
        """(R,): the token that must come next, −1 where any may."""
        here = rows.index_R
        over_R = self._inside_B[here] & (self._thought_B[here] >= self._budget)
        return torch.where(over_R, self._marks.end, -1)

    def follow(self, rows: Rows, ids_R: Tensor) -> None:
        """Read what was sampled."""
        here = rows.index_R
        inside_R, ends_R = self._inside_B[here], ids_R == self._marks.end
        opens_R = ~inside_R & ~self._closed_B[here] & (ids_R == self._marks.start)
        self._thought_B[here] += inside_R.long()  # once it has ended nobody asks
        self._closed_B[here] |= inside_R & ends_R
        self._inside_B[here] = (inside_R & ~ends_R) | opens_R
