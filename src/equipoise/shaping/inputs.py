"""What shaping functions take: (P, G) arrays beside `keep_PG`, checked once. Axes: P groups, G completions each.

The names are those of the fields of `Groups`. Nan is "not measured"; cells where `keep_PG` is False hold no completion, and
whatever stands in them is never read.
"""

from __future__ import annotations

import numpy as np

from equipoise.errors import UsageError, same_shape

# Who supplies a field of `Groups` that is None.
_SUPPLIED_BY = {
    "reward_PG": "the column reward",
    "correct_PG": "the column correct, or outcome",
    "n_tokens_PG": "the column n_tokens",
    "truncated_PG": "the column finish_reason",
    "degenerate_PG": "Groups.of(rollouts, degenerate=…), from the texts' flags",
}


def numbers(keep_PG: np.ndarray, **named: np.ndarray | None) -> np.ndarray:
    """One named (P, G) array as float64, nan where there is no completion. Infinite values are refused."""
    ((name, values_PG),) = named.items()
    if values_PG is None:
        raise UsageError(f"{name} is needed and was not measured: {_SUPPLIED_BY.get(name, 'the caller')} supplies it")
    values_PG, keep_PG = np.asarray(values_PG), np.asarray(keep_PG)
    same_shape(**{name: values_PG, "keep_PG": keep_PG})
    if keep_PG.dtype != np.bool_ or keep_PG.ndim != 2:
        raise UsageError(f"keep_PG must be bool of shape (P, G), found {keep_PG.dtype} of shape {keep_PG.shape}")
    values_PG = np.where(keep_PG, values_PG, np.nan).astype(np.float64)
    if np.isinf(values_PG).any():
        raise UsageError(f"{name} holds an infinite value: a cell is a finite number, or nan where it was not measured")
    return values_PG


def verdicts(keep_PG: np.ndarray, **named: np.ndarray | None) -> np.ndarray:
    """`numbers` that are 1, 0 or nan. Anything else is refused: it is a reward with something else mixed in."""
    ((name, _),) = named.items()
    values_PG = numbers(keep_PG, **named)
    odd = values_PG[~np.isnan(values_PG) & (values_PG != 0) & (values_PG != 1)]
    if odd.size:
        raise UsageError(
            f"{name} must hold 0, 1 or nan, found {odd[0]:g}: pass the raw verdicts (Groups.{name}), never a shaped reward"
        )
    return values_PG


def group_size(keep_PG: np.ndarray, k: int) -> None:
    """Refuse a k that no group could ever fill."""
    widest = np.shape(keep_PG)[1]
    if not 1 <= k <= widest and np.shape(keep_PG)[0]:
        raise UsageError(f"k = {k} does not fit groups of {widest} completions: use 1 <= k <= {widest}, or draw more")
