"""What a Parquet file says of its sizes, in its footer and in its page headers, read without trusting either.

A reader allocates what a page header says and decodes all of a page, so a footer that declares ten values does not bound
what one page brings. And pyarrow ends the process, past any `except`, when it is asked about a column whose footer entry
is damaged: for files of others, the entries are read here.
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from equipoise.errors import UsageError
from equipoise.rollouts import guards
from equipoise.rollouts.guards import Chunk, Group, Leaf
from equipoise.rollouts.thrift import read_struct


def groups_of(metadata: pq.FileMetaData, leaves: Sequence[Leaf]) -> list[Group]:
    """The row groups of a file whose footer is sound, as pyarrow read it."""
    groups = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunks = map(group.column, (leaf.at for leaf in leaves))
        sizes = [Chunk(c.num_values, c.total_compressed_size, c.total_uncompressed_size, 0) for c in chunks]
        groups.append(Group(group.num_rows, sizes))
    return groups


def read_groups(path: Path, leaves: Sequence[Leaf]) -> list[Group]:
    """The row groups of any file, from the bytes of its footer."""
    with _bytes_of(path) as data:
        size = int.from_bytes(data[-8:-4], "little")
        footer, _ = read_struct(data[len(data) - 8 - size : len(data) - 8], 0)
        groups = []
        for group in footer[4]:
            entries = [group[1][leaf.at][3] for leaf in leaves]
            # 5 values, 7 and 6 bytes packed and unpacked, 9 and 11 where the pages and the dictionary begin
            chunks = [Chunk(*map(_size, (e[5], e[7], e[6], min(e[9], e.get(11) or e[9])))) for e in entries]
            groups.append(Group(_size(group[3]), chunks))
        return groups


def _size(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError("not a size")
    return value


def check_pages(path: Path, groups: Sequence[Group], leaves: Sequence[Leaf]) -> None:
    """Refuse a file whose pages hold more than its footer says, or a page that shrank beyond belief."""
    with _bytes_of(path) as data:
        for group in groups:
            for leaf, chunk in zip(leaves, group.chunks, strict=True):
                _check_chunk(f"{path}: column '{leaf.path[:60]}'", data, chunk)


def _check_chunk(name: str, data: mmap.mmap, chunk: Chunk) -> None:
    at, values = chunk.start, 0
    end = at + chunk.packed
    while values < chunk.values and at < end:
        header, at = read_struct(data, at)
        unpacked, packed = _size(header[2]), _size(header[3])
        if unpacked > guards.MAX_EASY_TEXT and unpacked > guards.MAX_TEXT_RATIO * packed:
            raise UsageError(
                f"{name}: a page packs {unpacked} bytes into {packed}, the limit is {guards.MAX_TEXT_RATIO}-fold"
            )
        page = header.get(5) or header.get(8)  # a data page of either version; a dictionary has no rows
        values += _size(page[1]) if page else 0
        at += packed
    if values > chunk.values:
        raise UsageError(f"{name}: its pages hold {values} values, its footer says {chunk.values}")


@contextmanager
def _bytes_of(path: Path) -> Iterator[mmap.mmap]:
    try:
        with open(path, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
    except UsageError:
        raise
    except (IndexError, KeyError, TypeError, ValueError) as problem:
        raise UsageError(f"{path} is damaged: its footer or a page header cannot be read") from problem
