"""Rollouts, the noun that our own trainer and samplers write, as columns of the record: a column at a time.

The outcome is that of `rows.batches_of`, row by row. Some cells only it can judge: a text that is no UTF-8, a reward that is
nan, token lists of unequal lengths, a missing key. Rows with one of those among them go that way, with its warnings.
"""

from __future__ import annotations

from array import array as token_array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import isfinite
from types import NoneType
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.base import Finish, Outcome, Rollout
from equipoise.rollouts.arrays import join_lists
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.columns import BY_NAME, CELLS, TOKEN_COLUMNS, extra_text, flatten
from equipoise.rollouts.kinds import is_flat_list
from equipoise.rollouts.rows import BATCH_CELLS, BATCH_ROWS, FILLED, FREE_TEXT, KeyFiller, Warn, batches_of

_WORDS = {"finish_reason": frozenset((*get_args(Finish), None)), "outcome": frozenset((*get_args(Outcome), None))}


class _NotPlain(Exception):
    """A column holds a cell that has to be looked at by itself."""


def batches_of_rollouts(
    rollouts: Iterable[Rollout], step: int | None, warn: Warn, keys: KeyFiller
) -> Iterator[Rollouts]:
    """Batches of all columns. `step` is for those that have none."""
    for held in _cut(rollouts):
        try:
            batch = Rollouts.of_arrays(_arrays(held, step), len(held))
        except _NotPlain:
            yield from batches_of((_row(rollout, step) for rollout in held), None, warn, keys=keys)
        else:
            yield batch


def _row(rollout: Rollout, step: int | None) -> dict[str, Any]:
    row = flatten(rollout)
    return row | {"step": step} if row["step"] is None else row


def _cut(rollouts: Iterable[Rollout]) -> Iterator[list[Rollout]]:
    """Lists of a bounded size."""
    held: list[Rollout] = []
    cells = 0
    for rollout in rollouts:
        held.append(rollout)
        texts = (rollout.problem.prompt, rollout.completion.text, rollout.completion.thinking)
        cells += sum(map(_length, texts)) + 6 * _length(rollout.completion.token_ids)
        if len(held) >= BATCH_ROWS or cells >= BATCH_CELLS:
            yield held
            held, cells = [], 0
    if held:
        yield held


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 0


def _arrays(rollouts: list[Rollout], step: int | None) -> dict[str, pa.Array]:
    """By column, in the record's order; a column that is null in every row is left out."""
    columns = {name: list(map(cell, rollouts)) for name, cell in CELLS.items()} | _extra(rollouts)
    if step is not None:
        columns["step"] = [step if mine is None else mine for mine in columns["step"]]
    if any(None in columns[name] for name in FILLED):
        raise _NotPlain
    arrays, lengths = {}, []
    for name in BY_NAME:
        cells = columns.get(name, ())
        types = set(map(type, cells)) - {NoneType}
        if types and name in TOKEN_COLUMNS:
            arrays[name] = _token_lists(name, cells, types)
            lengths.append([-1 if cell is None else len(cell) for cell in cells])
        elif types:
            arrays[name] = _cells(name, cells, types)
    if lengths:
        lengths_CR = np.array(lengths)
        if ((lengths_CR >= 0) & (lengths_CR != lengths_CR.max(axis=0))).any():
            raise _NotPlain
    return arrays


def _extra(rollouts: Sequence[Rollout]) -> dict[str, list[Any]]:
    """What `extra` holds, in the columns that it names; the rest as JSON."""
    found: dict[str, list[Any]] = {}

    def put(name: str, at: int, value: Any) -> None:
        found.setdefault(name, [None] * len(rollouts))[at] = value

    for at, rollout in enumerate(rollouts):
        for name in rollout.extra:
            if name == "extra" or name in CELLS:  # counts only where the Rollout's own field is empty
                raise _NotPlain
            if name in BY_NAME:
                put(name, at, rollout.extra[name])
        rest = {name: value for name, value in rollout.extra.items() if name not in BY_NAME}
        if rest:
            put("extra", at, extra_text(rest))
    return found


def _cells(name: str, cells: Sequence[Any], types: set[type]) -> pa.Array:
    """Cells of these Python types, None aside, as the column; refused where one of them would not be stored as it is."""
    kind = BY_NAME[name].type
    try:
        array = pa.array(cells, type=kind) if _are_plain(name, cells, types, kind) else None
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as refused:
        raise _NotPlain from refused
    if array is None or (pa.types.is_floating(kind) and not pc.all(pc.is_finite(array)).as_py()):
        raise _NotPlain
    return array


def _are_plain(name: str, cells: Sequence[Any], types: set[type], kind: pa.DataType) -> bool:
    if name in _WORDS:
        return types == {str} and _WORDS[name].issuperset(cells)
    if pa.types.is_string(kind):
        return types == {str} and (name in FREE_TEXT or "" not in cells)
    if pa.types.is_boolean(kind):
        return types == {bool}
    if pa.types.is_integer(kind):
        return types == {int} and -(2 ** (kind.bit_width - 1)) not in cells
    if pa.types.is_floating(kind):
        return types <= {float, int}
    if pa.types.is_map(kind):
        keys, numbers = zip(*chain.from_iterable(cell for cell in cells if cell is not None), strict=True)
        return set(map(type, keys)) == {str} and set(map(type, numbers)) <= {float, int} and all(map(isfinite, numbers))
    return name == "messages" and types == {list} and _are_texts(cells)


def _are_texts(chats: Iterable[Sequence[Mapping[str, Any]] | None]) -> bool:
    parts = {type(part) for chat in chats for message in chat or () for part in message.values()}
    return parts <= {str, NoneType}


def _token_lists(name: str, cells: Sequence[Any], types: set[type]) -> pa.Array:
    """Buffers of numbers, joined without making Python numbers of them."""
    kind = BY_NAME[name].type
    if not is_flat_list(kind) or not types <= {token_array, np.ndarray}:
        raise _NotPlain
    try:
        flat = np.concatenate([cell for cell in cells if cell is not None])
    except ValueError as refused:  # some have two axes
        raise _NotPlain from refused
    if flat.ndim != 1:
        raise _NotPlain
    values = _values(flat, kind.value_type)
    lengths = np.array([0 if cell is None else len(cell) for cell in cells], dtype=np.int64)
    return join_lists(values, lengths, known=np.array([cell is not None for cell in cells]))


def _values(flat: np.ndarray, kind: pa.DataType) -> np.ndarray:
    """As `rows.token_values`, for numbers that need no warning."""
    if flat.dtype.kind not in "biuf":
        raise _NotPlain
    if pa.types.is_boolean(kind):
        if flat.dtype != bool and not ((flat == 0) | (flat == 1)).all():
            raise _NotPlain
        return flat.astype(bool, copy=False)
    if pa.types.is_integer(kind):
        if flat.dtype.kind not in "iu" or (flat.size and (flat.min() < -(2**31) or flat.max() >= 2**31)):
            raise _NotPlain
        return flat.astype(np.int32, copy=False)
    if not np.isfinite(flat).all():
        raise _NotPlain
    return flat if flat.dtype.kind == "f" else flat.astype(np.float64)
