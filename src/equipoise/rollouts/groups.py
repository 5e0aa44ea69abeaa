"""`Groups`: completions as problems × samples, the shape in which rewards are compared. Axes: P groups, G completions each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.errors import UsageError
from equipoise.rollouts.batch import Rollouts

# What was drawn together: the completions that share these.
GROUP_KEYS = ("run_id", "split", "step", "strategy", "budget", "group_id")
GROUP_COLUMNS = (*GROUP_KEYS, "prompt_id", "reward", "correct", "answer", "confidence", "n_tokens", "finish_reason")


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of completions. A field that was not measured is None; a cell that was not is nan.

    Groups of unequal size are padded: `keep_PG` is False there, and every other field nan (`answer_PG` and `row_PG` -1).
    """

    prompt_ids_P: tuple[str | None, ...]
    keep_PG: np.ndarray  # bool: there is a completion
    reward_PG: np.ndarray | None = None
    correct_PG: np.ndarray | None = None  # 1, 0, or nan where it was not checked
    answer_PG: np.ndarray | None = None  # a code: equal answers have equal codes, -1 none
    confidence_PG: np.ndarray | None = None
    n_tokens_PG: np.ndarray | None = None
    truncated_PG: np.ndarray | None = None  # 1 where the length limit ended it
    degenerate_PG: np.ndarray | None = None
    row_PG: np.ndarray | None = None  # the row each completion came from

    @classmethod
    def of(cls, rollouts: Rollouts | Iterable[Rollouts], *, degenerate: np.ndarray | None = None) -> Groups:
        """Groups in the order of their first row, completions in the order of their rows.

        `degenerate` has one entry per row, from whoever read the texts.
        """
        batches = [rollouts] if isinstance(rollouts, Rollouts) else list(rollouts)
        n_rows = sum(map(len, batches))
        if degenerate is not None and len(degenerate) != n_rows:
            raise UsageError(f"degenerate has {len(degenerate)} entries for {n_rows} rollouts")
        keys = {name: _codes(batches, name) for name in GROUP_KEYS}
        if keys["group_id"] is None:
            keys["group_id"] = _codes(batches, "prompt_id")
        if n_rows and (keys["group_id"] is None or (keys["group_id"] < 0).any()):
            raise UsageError("some rollouts have neither group_id nor prompt_id, so that they cannot be grouped")
        group_B = _numbered([codes for codes in keys.values() if codes is not None], n_rows)
        place_B = _places(group_B)
        shape = (int(group_B.max(initial=-1)) + 1, int(place_B.max(initial=-1)) + 1)

        def spread(values_B: np.ndarray | None, empty: Any) -> np.ndarray | None:
            if values_B is None:
                return None
            values_PG = np.full(shape, empty, dtype=np.asarray(values_B).dtype)
            values_PG[group_B, place_B] = values_B
            return values_PG

        finish = _texts(batches, "finish_reason")
        truncated = (
            None if finish is None else np.array([np.nan if f is None else float(f == "length") for f in finish])
        )
        prompt_ids = _texts(batches, "prompt_id") or [None] * n_rows
        first_P = np.unique(group_B, return_index=True)[1]
        keep_PG = np.zeros(shape, dtype=bool)
        keep_PG[group_B, place_B] = True
        return cls(
            prompt_ids_P=tuple(prompt_ids[row] for row in first_P),
            keep_PG=keep_PG,
            reward_PG=spread(_numbers(batches, "reward"), np.nan),
            correct_PG=spread(_numbers(batches, "correct"), np.nan),
            answer_PG=spread(_codes(batches, "answer"), -1),
            confidence_PG=spread(_numbers(batches, "confidence"), np.nan),
            n_tokens_PG=spread(_numbers(batches, "n_tokens"), np.nan),
            truncated_PG=spread(truncated, np.nan),
            degenerate_PG=spread(None if degenerate is None else np.asarray(degenerate, dtype=np.float64), np.nan),
            row_PG=spread(np.arange(n_rows), -1),
        )

    def to_rows(self, values_PG: np.ndarray) -> np.ndarray:
        """Values by group as values by row, in the order of the rollouts that `of` was given."""
        if self.row_PG is None:
            raise UsageError("these groups were not made from rollouts, so their rows are unknown")
        values_B = np.empty(int(self.keep_PG.sum()), dtype=np.asarray(values_PG).dtype)
        values_B[self.row_PG[self.keep_PG]] = np.asarray(values_PG)[self.keep_PG]
        return values_B


def _numbers(batches: list[Rollouts], name: str) -> np.ndarray | None:
    found = [batch.numbers(name) for batch in batches]
    if all(values is None for values in found):
        return None
    return np.concatenate([np.full(len(b), np.nan) if v is None else v for b, v in zip(batches, found, strict=True)])


def _texts(batches: list[Rollouts], name: str) -> list[str | None] | None:
    found = [batch.texts(name) for batch in batches]
    if all(texts is None for texts in found):
        return None
    return [text for b, texts in zip(batches, found, strict=True) for text in (texts or [None] * len(b))]


def _codes(batches: list[Rollouts], name: str) -> np.ndarray | None:
    """Equal cells have equal codes across batches; -1 where the cell is null. None: no batch has the column."""
    if name in ("step", "budget"):
        numbers = _numbers(batches, name)
        return None if numbers is None else np.where(np.isnan(numbers), -1, np.unique(numbers, return_inverse=True)[1])
    texts = _texts(batches, name)
    if texts is None:
        return None
    code_of: dict[str, int] = {}
    return np.array([-1 if text is None else code_of.setdefault(text, len(code_of)) for text in texts], dtype=np.int64)


def _numbered(keys: list[np.ndarray], n_rows: int) -> np.ndarray:
    """The number of each row's group, groups counted in the order of their first row."""
    if not n_rows:
        return np.empty(0, dtype=np.int64)
    _, first, group = np.unique(np.stack(keys, axis=1), axis=0, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return np.asarray(order[group.reshape(-1)])


def _places(group_B: np.ndarray) -> np.ndarray:
    """How many rows of the same group came before each row."""
    order = np.argsort(group_B, kind="stable")
    sizes = np.bincount(group_B) if len(group_B) else np.empty(0, dtype=np.int64)
    starts = np.repeat(np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes) if len(sizes) else sizes
    places = np.empty(len(group_B), dtype=np.int64)
    places[order] = np.arange(len(group_B)) - starts
    return places
