"""What a Parquet file could expand to, checked by its footer before anything is read.

A file of a kilobyte can hold one list of 2^28 equal numbers, or one long text that a million rows point to: the sizes in
its footer are those of the encoded form. So the guards count values, not bytes, and a reader cuts every batch to a fixed
number of values.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from equipoise.errors import UsageError
from equipoise.rollouts.kinds import has_bytes, is_flat_list, is_list

BATCH_ROWS = 8192
BATCH_VALUES = 4_000_000  # of one column in one batch; sixteen bytes of text count as one value
MAX_ROW_VALUES = 2**24  # of one column in one row
MAX_TEXT = 2**26  # bytes of one text
MAX_CHUNK_VALUES = 2**28  # of one column in one row group: all of them might belong to one row
MAX_EASY_VALUES, MAX_VALUES_PER_BYTE = (
    2**25,
    10_000,
)  # lists of one repeated number take bytes a row, a bomb a few in all
MAX_EASY_TEXT, MAX_TEXT_RATIO = 2**28, 500
MAX_ROWS = 50_000_000
MAX_CELLS = 2_000_000_000  # rows × columns
MAX_COLUMNS = 5_000
MAX_DEPTH = 8  # lists in lists

_TEXT_BYTES_PER_VALUE = 16
_REWRITE = "write it again with row groups of about 1,000 rows"


class Leaf(NamedTuple):
    """A column as Parquet stores it: a list or a struct has its values in leaves."""

    at: int
    path: str
    text: bool
    depth: int


class Chunk(NamedTuple):
    """The values of one leaf in one row group: how many, in how many bytes, and where they begin."""

    values: int
    packed: int
    unpacked: int
    start: int


class Group(NamedTuple):
    rows: int
    chunks: list[Chunk]  # one per leaf that was asked for


def leaves_of(types: pa.Schema, metadata: pq.FileMetaData, asked: set[str]) -> list[Leaf]:
    """The leaves under the asked top-level columns. They are counted off: a name may contain dots, as their paths do."""
    leaves, at = [], 0
    for field in types:
        following = at + _count_leaves(field.type)
        if field.name in asked:
            for column in map(metadata.schema.column, range(at, following)):
                # The keys of a map cannot be read as codes; they are names of a few reward parts.
                text = column.physical_type == "BYTE_ARRAY" and not column.path.endswith(".key_value.key")
                leaves.append(Leaf(at, column.path, text, column.max_repetition_level))
                at += 1
        at = following
    return leaves


def _count_leaves(kind: pa.DataType) -> int:
    children = kind.num_fields
    return sum(_count_leaves(kind.field(i).type) for i in range(children)) if children else 1


def check_file(path: Path, metadata: pq.FileMetaData, leaves: list[Leaf]) -> None:
    """Refuse a file that is too wide, too long or too deep."""
    rows, width = metadata.num_rows, metadata.num_columns
    if width > MAX_COLUMNS:
        raise UsageError(f"{path} has {width} columns, the limit is {MAX_COLUMNS}")
    if rows > MAX_ROWS or rows * max(1, len(leaves)) > MAX_CELLS:
        size = f"{rows} rows × {len(leaves)} columns"
        raise UsageError(f"{path} has {size}, the limit is {MAX_ROWS} rows and {MAX_CELLS} cells; split the file")
    for leaf in leaves:
        if leaf.depth > MAX_DEPTH:
            depth = f"lists nested {leaf.depth} deep"
            raise UsageError(f"{path}: column '{leaf.path[:60]}' has {depth}, the limit is {MAX_DEPTH}")


def check_group(path: Path, group: Group, leaves: list[Leaf]) -> int:
    """Refuse a row group that could expand beyond the limits; otherwise the rows that make one batch.

    Those hold about `BATCH_VALUES` values of the widest column, going by the means of the row group.
    """
    rows = max(1, group.rows)
    widest = 1.0
    for leaf, chunk in zip(leaves, group.chunks, strict=True):
        values, packed = chunk.values, max(1, chunk.packed)
        name = f"{path}: column '{leaf.path[:60]}'"
        if values > MAX_ROW_VALUES * rows:
            raise UsageError(f"{name} holds {values} values in {rows} rows, the limit is {MAX_ROW_VALUES} a row")
        if leaf.depth and values > MAX_CHUNK_VALUES:
            raise UsageError(
                f"{name} holds {values} values in one row group, the limit is {MAX_CHUNK_VALUES}; {_REWRITE}"
            )
        if leaf.depth and values > MAX_EASY_VALUES and values > MAX_VALUES_PER_BYTE * packed:
            limit = f"the limit is {MAX_VALUES_PER_BYTE} values a byte"
            raise UsageError(f"{name} packs {values} values into {packed} bytes, {limit}; {_REWRITE}")
        widest = max(widest, values / rows)
        if leaf.text:
            length = chunk.unpacked
            if length > MAX_TEXT * rows:
                raise UsageError(f"{name} holds {length} bytes of text in {rows} rows, the limit is {MAX_TEXT} a row")
            if length > MAX_EASY_TEXT and length > MAX_TEXT_RATIO * packed:
                limit = f"the limit is {MAX_TEXT_RATIO}-fold"
                raise UsageError(f"{name} packs {length} bytes of text into {packed}, {limit}; {_REWRITE}")
            widest = max(widest, length / rows / _TEXT_BYTES_PER_VALUE)
    return max(1, min(BATCH_ROWS, int(BATCH_VALUES / widest)))


def cut_batch(path: Path, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, in pieces where its lists or its texts written out would be too much for one."""
    heavy = None
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_primitive(array.type) or (is_flat_list(array.type) and len(array.values) <= 2 * BATCH_VALUES):
            continue  # the usual case, known without a look at the rows
        weights = row_weights(array)
        if weights is None:
            continue
        if weights.size and weights.max() > MAX_ROW_VALUES:
            raise UsageError(
                f"{path}: a row of '{name}' holds {int(weights.max())} values, the limit is {MAX_ROW_VALUES}"
            )
        if weights.sum() > 2 * BATCH_VALUES:
            heavy = weights if heavy is None else np.maximum(weights, heavy)
    if heavy is None:
        yield batch
        return
    for start, stop in cut_points(heavy, BATCH_VALUES, BATCH_ROWS):
        yield batch.slice(start, stop - start)


def cut_points(weights: np.ndarray, limit: int, rows: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of runs of rows that each weigh at most `limit`, or are one heavier row, and number at most `rows`."""
    total = np.concatenate([[0.0], np.cumsum(weights)])
    start = 0
    while start < len(weights):
        stop = int(np.searchsorted(total, total[start] + limit, side="right")) - 1
        stop = min(max(stop, start + 1), start + rows, len(weights))
        yield start, stop
        start = stop


def row_weights(array: pa.Array) -> np.ndarray | None:
    """Values in each row, sixteen bytes of text counted as one; None for a column of single numbers."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        if not has_bytes(kind.value_type):
            return None
        lengths = np.append(np.asarray(pc.binary_length(array.dictionary).fill_null(0), dtype=np.float64), 0.0)
        codes = np.asarray(array.indices.fill_null(len(lengths) - 1))
        return np.asarray(lengths[codes] / _TEXT_BYTES_PER_VALUE)
    if has_bytes(kind):
        return np.asarray(pc.binary_length(array).fill_null(0), dtype=np.float64) / _TEXT_BYTES_PER_VALUE
    if pa.types.is_struct(kind):
        parts = [weights for child in array.flatten() if (weights := row_weights(child)) is not None]
        return np.sum(parts, axis=0) if parts else None
    if pa.types.is_map(kind):
        array = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    elif not is_list(kind):
        return None
    lengths = np.asarray(pc.list_value_length(array).fill_null(0), dtype=np.int64)
    inside = row_weights(array.flatten())
    if inside is None:
        return lengths.astype(np.float64)
    total = np.concatenate([[0.0], np.cumsum(np.maximum(inside, 1))])
    ends = np.cumsum(lengths)
    return np.asarray(total[ends] - total[ends - lengths])
