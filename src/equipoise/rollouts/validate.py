"""Whether a run keeps to the rules of the record. Nothing is changed or left out: faults are counted and named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.base import CORRECT, Finish, Outcome
from equipoise.rollouts.batch import Ragged, Rollouts
from equipoise.rollouts.columns import BY_NAME
from equipoise.rollouts.run import Run

ROW_KEYS = ("run_id", "split", "step", "strategy", "budget", "group_id", "parent_id", "turn", "sample_index")
_NUMBERS = tuple(name for name, column in BY_NAME.items() if pa.types.is_floating(column.type))
_TOKENS = tuple(name for name, column in BY_NAME.items() if column.kind == "tokens" and not name.startswith("topk_"))
_LOGPROBS = ("logprobs_rollout", "logprobs_train", "logprobs_ref")
_SLACK = 1e-3  # the log-prob of a certain token may round to a little above 0
_CHECKED = tuple(dict.fromkeys((*ROW_KEYS, *_NUMBERS, "correct", "outcome", "finish_reason", "n_tokens", *_TOKENS)))


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule that rows of a run break: how many do, and where the first is."""

    kind: str
    message: str
    count: int
    first: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message} ({self.count} rows, the first at {self.first})"


def validate_run(run: Run) -> list[Fault]:
    """Every rule that the run breaks; an empty list for a sound run. One pass, eight bytes a row kept."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    hashes = [np.empty(0, dtype=np.int64)]
    for rollouts in run.rollouts(_CHECKED):
        for kind, message, bad_B in _broken(rollouts):
            rows = np.flatnonzero(bad_B)
            if len(rows):
                count, first = found.get((kind, message), (0, ""))
                found[kind, message] = (count + len(rows), first or _where(rollouts, int(rows[0])))
        hashes.append(_row_hashes(rollouts))
    faults = [Fault(kind, message, count, first) for (kind, message), (count, first) in found.items()]
    return faults + _repeated(run, np.concatenate(hashes))


def _broken(rollouts: Rollouts) -> Iterator[tuple[str, str, np.ndarray]]:
    """(kind, rule, which rows break it)."""
    lists = {name: ragged for name in _TOKENS if (ragged := rollouts.ragged(name)) is not None}
    if len(lists) > 1:
        lengths_CB = np.array([np.where(r.known, r.lengths, -1) for r in lists.values()])
        shortest = np.where(lengths_CB < 0, np.iinfo(np.int64).max, lengths_CB).min(axis=0)
        yield "unequal-tokens", "token lists differ in length", (lengths_CB.max(axis=0) > shortest)
    for name in _NUMBERS:
        if name in rollouts.columns:
            yield f"bad-{name}", f"{name} is nan or infinite", _not_finite(rollouts.batch.column(name))
    for name, ragged in lists.items():
        values = rollouts.batch.column(name).flatten()
        if pa.types.is_floating(values.type):
            yield f"bad-{name}", f"{name} holds nan or infinity", _any_in_row(_not_finite(values), ragged)
        if name in _LOGPROBS:
            yield f"bad-{name}", f"{name} is above 0", _any_in_row(ragged.values > _SLACK, ragged)
        if name == "entropies":
            yield "bad-entropies", "an entropy is below 0", _any_in_row(ragged.values < 0, ragged)
    confidence = rollouts.numbers("confidence")
    if confidence is not None:
        yield "bad-confidence", "confidence is outside 0 to 1", (confidence < 0) | (confidence > 1)
    n_tokens = rollouts.numbers("n_tokens")
    if n_tokens is not None:
        yield "bad-n_tokens", "n_tokens is below 0", n_tokens < 0
    for name, words in (("outcome", get_args(Outcome)), ("finish_reason", get_args(Finish))):
        texts = rollouts.texts(name)
        if texts is not None:
            bad = np.array([text is not None and text not in words for text in texts], dtype=bool)
            yield f"bad-{name}", f"{name} is none of {', '.join(words)}", bad
    outcomes, correct = rollouts.texts("outcome"), rollouts.numbers("correct")
    if outcomes is not None and correct is not None:
        said = np.array([np.nan if CORRECT.get(outcome) is None else float(CORRECT[outcome]) for outcome in outcomes])
        yield (
            "bad-correct",
            "correct and outcome disagree",
            np.isfinite(said) & np.isfinite(correct) & (said != correct),
        )


def _not_finite(array: pa.Array) -> np.ndarray:
    """Which values are there and not finite; a null is fine."""
    return np.asarray(pc.invert(pc.is_finite(array.cast(pa.float64(), safe=False))).fill_null(False), dtype=bool)


def _any_in_row(bad_T: np.ndarray, ragged: Ragged) -> np.ndarray:
    """For each row, whether any of its tokens is bad."""
    seen = np.concatenate([[0], np.cumsum(bad_T)])
    return np.asarray(seen[ragged.offsets[1:]] > seen[ragged.offsets[:-1]])


def _where(rollouts: Rollouts, row: int) -> str:
    cells = {name: rollouts.batch.column(name)[row].as_py() for name in rollouts.columns if name in ROW_KEYS}
    return ", ".join(f"{name} {cell}" for name, cell in cells.items() if cell is not None) or f"row {row} of a batch"


def _keys(rollouts: Rollouts) -> Iterator[tuple[object, ...] | None]:
    """What tells each row from every other; None for a row whose place in its group is not known."""
    columns = [rollouts.batch.column(name).to_pylist() if name in rollouts.columns else None for name in ROW_KEYS]
    group, sample = columns[ROW_KEYS.index("group_id")], columns[ROW_KEYS.index("sample_index")]
    for row in range(len(rollouts)):
        known = group is not None and sample is not None and group[row] is not None and sample[row] is not None
        yield tuple(None if column is None else column[row] for column in columns) if known else None


def _row_hashes(rollouts: Rollouts) -> np.ndarray:
    return np.array([hash(key) for key in _keys(rollouts) if key is not None], dtype=np.int64)


def _repeated(run: Run, hashes: np.ndarray) -> list[Fault]:
    values, counts = np.unique(hashes, return_counts=True)
    if not (counts > 1).any():
        return []
    twice = set(values[counts > 1].tolist())
    first = next(
        _where(rollouts, row)
        for rollouts in run.rollouts(ROW_KEYS)
        for row, key in enumerate(_keys(rollouts))
        if key is not None and hash(key) in twice
    )
    n = int((counts[counts > 1] - 1).sum())
    return [Fault("repeated-rows", "a group has one sample_index more than once; every row is kept", n, first)]
