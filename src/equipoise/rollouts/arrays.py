"""Whole columns of the record from numbers and texts that have their types already: no cell is looked at by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from equipoise.rollouts.columns import BY_NAME


def column_of(name: str, values: Sequence[Any] | np.ndarray, known: np.ndarray | None = None) -> pa.Array:
    """A value for each row, null where it is None, nan or not `known`."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        known = ~np.isnan(values) if known is None else known & ~np.isnan(values)
    return pa.array(values, type=BY_NAME[name].type, mask=None if known is None else ~known)


def repeat_value(name: str, value: Any, n_rows: int) -> pa.Array:
    """One value in every row."""
    return pa.repeat(pa.scalar(value, type=BY_NAME[name].type), n_rows)


def pick_texts(values: Sequence[str | None], codes: np.ndarray) -> pa.Array:
    """The text of each row's code: what rows share is stored once."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, type=pa.int32()), pa.array(values, type=pa.string()))


def join_lists(
    values: np.ndarray, lengths: np.ndarray, kind: pa.DataType | None = None, known: np.ndarray | None = None
) -> pa.Array:
    """Lists of these lengths out of one flat array. What is not finite is null; so is a list that is not `known`, of length 0."""
    finite = np.isfinite(values) if values.dtype.kind == "f" else None
    inner = pa.array(values, type=kind, mask=None if finite is None or finite.all() else ~finite)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), type=pa.int32())
    nulls = None if known is None or known.all() else pa.array(~known)
    return pa.ListArray.from_arrays(offsets, inner, mask=nulls)


def join_maps(keys: Sequence[str], values: np.ndarray, known: np.ndarray) -> pa.Array:
    """(rows, keys) numbers as a map for each row; a key that is not `known` is left out, and a row without any is null."""
    lengths = known.sum(axis=1)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    offsets = pa.array(ends, type=pa.int32(), mask=np.append(lengths == 0, False))
    names = pa.array(keys, type=pa.string()).take(pa.array(np.nonzero(known)[1]))
    return pa.MapArray.from_arrays(offsets, names, pa.array(values[known], type=pa.float64()))
