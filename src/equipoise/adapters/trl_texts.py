"""What is read of a completion: its texts token by token, whether it is right, and which tokens an answer or a plan stands in. Axes: B rows, T tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from equipoise.base import Answer
from equipoise.errors import UsageError
from equipoise.text.phrases import Span
from equipoise.text.planning import planning_spans, spans_to_tokens, token_offsets

Read = Callable[[str], Answer | None]


class Decode(Protocol):
    def __call__(self, ids: list[list[int]], *, skip_special_tokens: bool = False) -> list[str]: ...


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


def decoder_of(tokenizer: Any) -> Decode:
    """`batch_decode`, as one call of the Rust tokenizer beneath where that is all it does: such a call leaves Python to other threads."""

    def one_by_one(ids: list[list[int]], *, skip_special_tokens: bool = False) -> list[str]:
        return list(tokenizer.batch_decode(ids, skip_special_tokens=skip_special_tokens)) if ids else []

    def at_once(ids: list[list[int]], *, skip_special_tokens: bool = False) -> list[str]:
        return list(tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=skip_special_tokens))

    return at_once if _only_decodes(tokenizer) else one_by_one


def _only_decodes(tokenizer: Any) -> bool:
    """Whether transformers adds nothing to what the Rust tokenizer decodes."""
    if not hasattr(tokenizer, "backend_tokenizer"):
        return False
    from transformers import PreTrainedTokenizerFast

    theirs = ("_decode", "decode", "batch_decode")
    if any(getattr(type(tokenizer), name, None) is not getattr(PreTrainedTokenizerFast, name) for name in theirs):
        return False
    # Spaces before punctuation are cleaned up after decoding, where asked for; not for BPE, which that would corrupt.
    forced = getattr(tokenizer, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", True)
    kept = type(tokenizer.backend_tokenizer.model).__name__ == "BPE" and not forced
    return kept or not tokenizer.clean_up_tokenization_spaces


class TokenTexts:
    """Each id is decoded once. A character that is split over tokens reads as replacement signs: spans are of the joined text."""

    def __init__(self, tokenizer: Any) -> None:
        self._decode = decoder_of(tokenizer)
        self._special = set(tokenizer.all_special_ids)
        self.seen: dict[int, str] = {}

    def of(self, ids: Sequence[int]) -> list[str]:
        """One text per token, nothing for special tokens."""
        new = list(set(ids) - self.seen.keys())
        for token, text in zip(new, self._decode([[token] for token in new]), strict=True):
            self.seen[token] = "" if token in self._special else text
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
