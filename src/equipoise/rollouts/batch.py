"""`Rollouts`: a batch of the record's rows as columns. Ragged lists are values and offsets, read without a copy."""

from __future__ import annotations

from array import array as token_array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.rollouts.arrays import join_lists
from equipoise.rollouts.columns import BY_NAME, schema
from equipoise.rollouts.kinds import is_flat_list


@dataclass(frozen=True, slots=True)
class Ragged:
    """One list per row: row i holds values[offsets[i]:offsets[i + 1]]; `known[i]` False: the row's list is null."""

    values: np.ndarray
    offsets: np.ndarray
    known: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Some rows of the record. A column that the source does not have is absent: every accessor then gives `None`."""

    batch: pa.RecordBatch

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Rollouts:
        """Rows as dicts; keys are column names, missing keys are null. A column null in every row is left out.

        Token lists may be lists, `array.array` or numpy arrays.
        """
        rows = list(rows)
        wanted = schema(None if columns is None else tuple(columns), exact=True)
        arrays = {}
        for field in wanted:
            cells = [row.get(field.name) for row in rows]
            if any(cell is not None for cell in cells):
                arrays[field.name] = _array_of(cells, field.type)
        return cls.of_arrays(arrays, len(rows))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, pa.Array], n_rows: int) -> Rollouts:
        """Arrow arrays of `n_rows` each, by column name."""
        if arrays:
            return cls(pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays)))
        return cls(pa.RecordBatch.from_struct_array(pa.array([{}] * n_rows, type=pa.struct([]))))

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.batch.schema.names)

    def _array(self, name: str) -> pa.Array | None:
        if name not in BY_NAME:
            raise KeyError(f"'{name}' is not a column of the record")
        index = self.batch.schema.get_field_index(name)
        return None if index < 0 else self.batch.column(index)

    def numbers(self, name: str) -> np.ndarray | None:
        """A float64 array with nan where the cell is null (booleans as 0 and 1)."""
        array = self._array(name)
        if array is None:
            return None
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        return np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)

    def texts(self, name: str) -> list[str | None] | None:
        array = self._array(name)
        if array is None:
            return None
        if not pa.types.is_dictionary(array.type):
            return list(array.to_pylist())
        # Rows that repeat one text share one string: a long text repeated a million times stays one text.
        codes, values = _distinct(array)
        values.append(None)
        return [values[code] for code in codes.tolist()]

    def codes(self, name: str) -> tuple[np.ndarray, list[str]] | None:
        """A text column as (code of each row, distinct values); code -1 is null. Equal texts share a code."""
        array = self._array(name)
        if array is None:
            return None
        codes, values = _distinct(array if pa.types.is_dictionary(array.type) else array.dictionary_encode())
        # A file's dictionary may hold a null, or one value twice.
        code_of = {value: code for code, value in enumerate(dict.fromkeys(v for v in values if v is not None))}
        lookup = np.array([-1 if value is None else code_of[value] for value in (*values, None)], dtype=np.int64)
        return lookup[codes], list(code_of)

    def ragged(self, name: str) -> Ragged | None:
        """A token column as flat values and offsets, without a copy where no cell is null. A null inside a list is nan."""
        array = self._array(name)
        if array is None:
            return None
        if array.null_count:
            values = array.flatten()  # passes over null rows, whatever their offsets say
            known = np.asarray(array.is_valid(), dtype=bool)
            lengths = np.asarray(pc.list_value_length(array).fill_null(0), dtype=np.int64)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
        else:
            known = np.ones(len(array), dtype=bool)
            offsets = np.asarray(array.offsets, dtype=np.int64)
            values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
            offsets = offsets - offsets[0]
        if values.null_count:
            values = values.cast(pa.float64(), safe=False).fill_null(float("nan"))
        return Ragged(values.to_numpy(zero_copy_only=False), offsets, known)

    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts: for small batches and for tests."""
        if not self.columns:
            return [{} for _ in range(len(self))]
        columns = dict(zip(self.columns, self.batch.columns, strict=True))
        cells = [
            self.texts(name) or [] if pa.types.is_dictionary(array.type) else array.to_pylist()
            for name, array in columns.items()
        ]
        return [dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)]


def _distinct(encoded: pa.DictionaryArray) -> tuple[np.ndarray, list[str | None]]:
    """(position of each row's value, -1 for null; the values in use), whatever else the dictionary of the file holds."""
    indices = np.asarray(encoded.indices.fill_null(-1), dtype=np.int64)
    used, positions = np.unique(indices, return_inverse=True)
    if used.size and used[0] == -1:
        used, positions = used[1:], positions - 1
    return positions, encoded.dictionary.take(pa.array(used)).to_pylist()


def _array_of(cells: list[Any], kind: pa.DataType) -> pa.Array:
    """An Arrow array. Token lists that are buffers already are joined without making Python numbers of them."""
    if not is_flat_list(kind) or not all(cell is None or isinstance(cell, token_array | np.ndarray) for cell in cells):
        return pa.array(cells, type=kind)
    dtype = np.dtype(bool) if pa.types.is_boolean(kind.value_type) else np.dtype(kind.value_type.to_pandas_dtype())
    pieces = [np.asarray(cell, dtype=dtype) for cell in cells if cell is not None]
    lengths = np.array([0 if cell is None else len(cell) for cell in cells], dtype=np.int64)
    joined = np.concatenate(pieces) if pieces else np.empty(0, dtype)
    return join_lists(joined, lengths, kind.value_type, known=np.array([cell is not None for cell in cells]))
