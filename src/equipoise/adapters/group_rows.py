"""Rows of a host's batch as groups, and back. Axes: B rows, P groups, G completions each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np

from equipoise.catalogue.base import Method
from equipoise.catalogue.table import is_built, methods
from equipoise.errors import UsageError

MEASURED = ("reward_PG", "correct_PG", "keep_PG")


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Where each row stands: groups in the order of their first row, padded where they are unequal."""

    group_B: np.ndarray
    place_B: np.ndarray
    keep_PG: np.ndarray

    @classmethod
    def of(cls, ids_B: Sequence[Hashable]) -> GroupRows:
        number: dict[Hashable, int] = {}
        group_B = np.array([number.setdefault(each, len(number)) for each in ids_B], dtype=np.int64)
        seen, place_B = np.zeros(len(number), dtype=np.int64), np.zeros(len(group_B), dtype=np.int64)
        for row, group in enumerate(group_B):
            place_B[row] = seen[group]
            seen[group] += 1
        keep_PG = np.arange(seen.max(initial=0))[None, :] < seen[:, None]
        return cls(group_B, place_B, keep_PG)

    def laid(self, values_B: np.ndarray) -> np.ndarray:
        """(P, G), nan where there is no row."""
        values_PG = np.full(self.keep_PG.shape, np.nan)
        values_PG[self.group_B, self.place_B] = values_B
        return values_PG

    def back(self, values_PG: np.ndarray) -> np.ndarray:
        return np.asarray(values_PG[self.group_B, self.place_B])


def group_advantages() -> tuple[Method, ...]:
    """The catalogue's advantages that need nothing but the rewards of a group."""
    return tuple(
        row for row in methods() if row.kind == "advantage" and set(row.inputs) <= set(MEASURED) and is_built(row)
    )


def advantage_of_rows(call: Callable[..., np.ndarray], rewards_B: np.ndarray, ids_B: Sequence[Hashable]) -> np.ndarray:
    """(B,): what a group advantage makes of the rows' rewards.

    A method that reads verdicts gets the rewards as such: it refuses any other than 0 and 1, since a reward that a
    penalty or a bonus is mixed into says nothing of right and wrong.
    """
    rows = GroupRows.of(ids_B)
    if len(rows.group_B) != len(rewards_B):
        raise UsageError(
            f"one group id per completion is needed: {len(rewards_B)} completions, {len(rows.group_B)} ids"
        )
    reward_PG = rows.laid(np.asarray(rewards_B, dtype=np.float64))
    given: dict[str, Any] = {"reward_PG": reward_PG, "correct_PG": reward_PG, "keep_PG": rows.keep_PG}
    taken = [name for name in signature(call).parameters if name in given]
    return rows.back(call(**{name: given[name] for name in taken}))
