"""Any Parquet file as a stream of bounded batches. Texts come as codes into the file's own dictionary, so that one long
text which many rows share is held once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.errors import UsageError
from equipoise.rollouts.guards import Leaf, check_file, check_group, cut_batch, leaves_of
from equipoise.rollouts.kinds import is_text
from equipoise.rollouts.pages import check_pages, groups_of, read_groups

BROKEN = (pa.ArrowException, OSError, UnicodeDecodeError)  # what pyarrow raises on bytes that make no sense


def stream_parquet(
    path: Path,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    warn: Callable[[str, str], None] = lambda kind, message: None,
) -> Iterator[pa.RecordBatch]:
    """Batches of the named top-level columns, those that the file has; `rename` maps a file's name to the one to give it.

    Texts come as dictionary arrays. A file that is damaged, or that would expand beyond the limits of `guards`, is a
    `UsageError`: at once where footer or page headers show it.
    """
    file, asked, leaves = _open(path, columns)
    groups = read_groups(path, leaves)
    sizes = [check_group(path, group, leaves) for group in groups]
    check_pages(path, groups, leaves)
    return _batches(path, file, asked, sizes, rename or {}, warn)


def stream_part(path: Path, columns: Sequence[str], warn: Callable[[str, str], None]) -> Iterator[pa.RecordBatch]:
    """`stream_parquet` for a part of a run folder. Its writer is known and its footer believed, which is twice as fast."""
    file, asked, leaves = _open(path, columns)
    sizes = [check_group(path, group, leaves) for group in groups_of(file.metadata, leaves)]
    return _batches(path, file, asked, sizes, {}, warn)


def _open(path: Path, columns: Sequence[str] | None) -> tuple[pq.ParquetFile, list[str], list[Leaf]]:
    """The file, set to give texts as codes; the columns to read; and their leaves."""
    file = open_parquet(path)
    types = column_types(file, path)
    names = types.names
    asked = [name for name in names if columns is None or name in columns]
    for name in asked:
        if names.count(name) > 1:
            raise UsageError(f"{path} has {names.count(name)} columns named '{name}'; rename them")
    leaves = leaves_of(types, file.metadata, set(asked))
    check_file(path, file.metadata, leaves)
    texts = [leaf.path for leaf in leaves if leaf.text]
    if texts:
        file.close()
        file = pq.ParquetFile(path, metadata=file.metadata, read_dictionary=texts, pre_buffer=True)
    return file, asked, leaves


def _batches(
    path: Path,
    file: pq.ParquetFile,
    asked: list[str],
    sizes: list[int],
    rename: Mapping[str, str],
    warn: Callable[[str, str], None],
) -> Iterator[pa.RecordBatch]:
    names = [rename.get(name, name) for name in asked]
    try:
        with file:
            for group, size in enumerate(sizes):  # one at a time: what is read ahead is bounded by a row group
                for batch in file.iter_batches(size, row_groups=[group], columns=asked):
                    if asked:
                        arrays = [_valid(path, name, batch.column(name), warn) for name in asked]
                        batch = pa.RecordBatch.from_arrays(arrays, names=names)
                    yield from cut_batch(path, batch)
    except BROKEN as problem:
        raise UsageError(f"{path} is damaged and cannot be read: {_one_line(problem)}") from problem


def open_parquet(path: Path) -> pq.ParquetFile:
    """The file, with its footer read; what is wrong with it otherwise, in one line."""
    try:
        return pq.ParquetFile(path, pre_buffer=True)
    except BROKEN as problem:
        raise UsageError(_what_is_wrong(path, problem)) from problem


def column_types(file: pq.ParquetFile, path: Path) -> pa.Schema:
    """The file's columns with their Arrow types."""
    try:
        return file.schema_arrow
    except BROKEN as problem:
        raise UsageError(f"cannot read the columns of {path}: {_one_line(problem)}") from problem


def _what_is_wrong(path: Path, problem: Exception) -> str:
    try:
        with open(path, "rb") as handle:
            head = handle.read(4)
            size = handle.seek(0, 2)
            handle.seek(max(0, size - 4))
            tail = handle.read(4)
    except OSError as unreadable:
        return f"cannot read {path}: {_one_line(unreadable)}"
    if size == 0:
        return f"{path} is empty"
    if b"PARE" in (head, tail):
        return f"{path} is an encrypted Parquet file; write it again without encryption"
    if head != b"PAR1":
        return f"{path} is not a Parquet file"
    if tail != b"PAR1":
        return f"{path} is a Parquet file cut short (it has no footer); copy it again"
    return f"cannot read {path}: {_one_line(problem)}"


def _one_line(problem: BaseException) -> str:
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return " ".join(str(problem).split())[:200]


def _valid(path: Path, name: str, array: pa.Array, warn: Callable[[str, str], None]) -> pa.Array:
    """pyarrow checks neither that a text is UTF-8 nor that a code is in its dictionary, and Python would fail on it later.

    Bytes of a text that are not UTF-8 become '�'; anything else is a damaged file.
    """
    try:
        array.validate(full=True)
        return array
    except pa.ArrowInvalid:
        values = array.dictionary if pa.types.is_dictionary(array.type) else array
        if not is_text(values.type):
            raise
        raw = values.cast(pa.large_binary() if pa.types.is_large_string(values.type) else pa.binary())
        texts = [None if value is None else value.decode("utf-8", "replace") for value in raw.to_pylist()]
        mended = pa.array(texts, type=values.type)
        if pa.types.is_dictionary(array.type):
            mended = pa.DictionaryArray.from_arrays(array.indices, mended)
        mended.validate(full=True)
        warn("encoding", f"{path.name}: texts of '{name}' are not all UTF-8; the bytes that are not were replaced")
        return mended
