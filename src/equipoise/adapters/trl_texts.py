"""What is read of a completion: its texts token by token, whether it is right, and which tokens an answer or a plan stands in. Axes: B rows, T tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.base import Answer
from equipoise.errors import UsageError
from equipoise.text.phrases import Span
from equipoise.text.planning import planning_spans, spans_to_tokens, token_offsets

Read = Callable[[str], Answer | None]


def verdict(name: str | None, rewards: Mapping[str, float]) -> bool | None:
    """Whether the named reward function calls a completion right; None where it did not say, or none is named."""
    said = None if name is None else rewards.get(name)
    if said is None:
        return None
    if said not in (0.0, 1.0):
        raise UsageError(
            f"correct='{name}' must be 1 for right and 0 for wrong, found {said:g}: name a reward function that says so"
        )
    return said == 1.0


class TokenTexts:
    """Each id is decoded once. A character that is split over tokens reads as replacement signs: spans are of the joined text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self.seen: dict[int, str] = {}

    def of(self, ids: Sequence[int]) -> list[str]:
        """One text per token, nothing for special tokens."""
        for token in set(ids) - self.seen.keys():
            self.seen[token] = "" if token in self._special else str(self._tokenizer.decode([token]))
        return [self.seen[token] for token in ids]


def answer_tokens(texts: Sequence[str], answer: Answer | None) -> list[bool]:
    """The tokens that the answer stands in, read from the joined texts; none where its place is not known."""
    spans = [] if answer is None or answer.span is None else [Span("answer", "", *answer.span)]
    return spans_to_tokens(spans, token_offsets(texts))


def planning_tokens(texts: Sequence[str]) -> list[bool]:
    return spans_to_tokens(planning_spans("".join(texts)), token_offsets(texts))


def laid_out(rows: Sequence[Sequence[bool]], width: int) -> np.ndarray:
    """(B, T) bool, False after each row's end."""
    marked_BT = np.zeros((len(rows), width), dtype=bool)
    for row, marks in enumerate(rows):
        marked_BT[row, : len(marks)] = marks
    return marked_BT
