"""`RunWriter`: a run folder that only grows. Whatever moment the process dies at, every file that a reader sees is whole."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import count, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.base import Rollout
from equipoise.errors import UsageError, unknown_name
from equipoise.files import append_line, atomic_create, atomic_write, make_folder, plain, read_json
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.columns import BY_NAME, COLUMNS, SCHEMA_VERSION, schema
from equipoise.rollouts.conform import with_values
from equipoise.rollouts.folder import info_of, step_folders
from equipoise.rollouts.guards import cut_points, row_weights
from equipoise.rollouts.kinds import is_flat_list
from equipoise.rollouts.nouns import batches_of_rollouts
from equipoise.rollouts.rows import KeyFiller, batches_of
from equipoise.rollouts.run import RunInfo, Warnings
from equipoise.rollouts.vocab import VocabFile

ROW_GROUP_ROWS = 512
ROW_GROUP_VALUES = 4_000_000  # of the longest column; sixteen bytes of text count as one value
BUFFERED_BYTES = 64 * 1024 * 1024  # up to here a part is made in memory and written at once
HELD_BYTES = 256 * 1024 * 1024  # rows kept in memory before the fullest step is written out

# The step is the name of the folder: stored twice, it would stop pandas and pyarrow from reading the folder whole.
STORED = pa.schema([field for field in schema() if field.name != "step"])

# A dictionary pays for texts and ids. Floats hardly repeat: without one they are written three times and read twice as fast.
_DICTIONARY = [c.name for c in COLUMNS if pa.types.is_string(c.type)]
_DICTIONARY += [
    "messages.list.element.role",
    "messages.list.element.content",
    "rewards.key_value.key",
    "token_ids.list.element",
]
_SPLIT = [f"{c.name}.list.element" for c in COLUMNS if c.type == pa.list_(pa.float32())]


class RunWriter:
    """Writes a run folder, or goes on with one. Several processes may write into one folder.

    `warnings` holds what was not stored as given: unequal token lists, nan, cells of a wrong type.
    """

    def __init__(self, folder: Path | str, info: RunInfo) -> None:
        self.folder = Path(folder)
        self.info = info
        self.warnings = Warnings()
        self._vocab = VocabFile(self.folder)
        path = self.folder / "run.json"
        try:
            make_folder(self.folder)
            if path.exists():
                self._resume(path)
                return
            with atomic_create([path]) as handle:
                handle.write(_json({"schema_version": SCHEMA_VERSION} | asdict(info)))
        except FileExistsError:
            self._resume(path)  # another process was faster
        except OSError as problem:
            raise UsageError(
                f"cannot write a run into {folder}: {problem.strerror or problem}; name a folder that can be written"
            ) from problem

    def _resume(self, path: Path) -> None:
        found = info_of(path)
        if found.run_id is not None and self.info.run_id is not None and found.run_id != self.info.run_id:
            raise UsageError(
                f"{self.folder} holds the run '{found.run_id}', not '{self.info.run_id}'; name another folder"
            )
        self.info = replace(self.info, run_id=self.info.run_id if found.run_id is None else found.run_id)

    def restate(self) -> None:
        """Put our settings in the place of those that run.json holds, where they differ: a run that goes on may be longer."""
        path = self.folder / "run.json"
        held, settings = read_json(path), plain(self.info.settings)
        if held.get("settings") != settings:
            with _one_line(path), atomic_write(path) as handle:
                handle.write(_json(held | {"settings": settings}))

    def write(self, rollouts: Iterable[Rollout] | Iterable[Mapping[str, Any]], step: int | None = None) -> int:
        """Store rollouts, given as `Rollout` or as rows keyed by column names; how many. `step` is for those that have none.

        One new part per step, complete or absent.
        """
        return self.write_batches(self._batches(rollouts, step))

    def _batches(self, rollouts: Iterable[Any], step: int | None) -> Iterator[Rollouts]:
        keys = KeyFiller(self.warnings)
        for typed, items in groupby(rollouts, key=lambda item: isinstance(item, Rollout)):
            if typed:
                yield from batches_of_rollouts(items, step, self.warnings, keys)
            else:
                yield from batches_of(_known_columns(items, step), None, self.warnings, keys=keys)

    def write_batches(self, batches: Iterable[Rollouts]) -> int:
        """Store rows that are columns already; how many."""
        held: dict[int | None, list[pa.RecordBatch]] = defaultdict(list)
        sizes: dict[int | None, int] = defaultdict(int)
        written = 0
        for rollouts in batches:
            written += len(rollouts)
            for step, batch in _by_step(rollouts):
                held[step].append(batch)
                sizes[step] += batch.nbytes
            while sum(sizes.values()) > HELD_BYTES:
                fullest = max(sizes, key=lambda step: sizes[step])
                self._write_part(fullest, held.pop(fullest))
                del sizes[fullest]
        for step, parts in held.items():
            self._write_part(step, parts)
        return written

    def _write_part(self, step: int | None, batches: list[pa.RecordBatch]) -> None:
        home = self.folder / "rollouts" / ("step=none" if step is None else f"step={step:06d}")
        taken = len(list(home.glob("part-*.parquet"))) if home.is_dir() else 0
        table = pa.Table.from_batches(batches, schema=STORED).combine_chunks()
        with _one_line(home), atomic_create(home / f"part-{number:04d}.parquet" for number in count(taken)) as handle:
            if table.nbytes > BUFFERED_BYTES:
                _write_parquet(handle, table)
            else:
                # Arrow asks Python for every page that it writes to a file of Python's: a training thread would wait each time.
                made = pa.BufferOutputStream()
                _write_parquet(made, table)
                handle.write(made.getvalue())

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl. Nan becomes null."""
        with _one_line(self.folder / "metrics.jsonl") as path:
            append_line(path, {**metrics, "step": step})

    def choose(self, choice: Mapping[str, Any]) -> None:
        """One line of choices.jsonl: what a strategy answered, with its spend."""
        with _one_line(self.folder / "choices.jsonl") as path:
            append_line(path, dict(choice))

    def vocab(self, texts: Mapping[int, str]) -> None:
        """Add the strings of token ids to vocab.json."""
        with _one_line(self._vocab.path):
            self._vocab.add(texts)

    def rewind(self, step: int) -> None:
        """Go on from `step`: rollouts and metrics of later steps no longer count. They are kept, under superseded/."""
        later = [path for number, path in step_folders(self.folder) if number is not None and number > step]
        with _one_line(self.folder / "metrics.jsonl") as path:
            append_line(path, {"rewind": step})
        if later:
            home = next(home for n in count() if not (home := self.folder / "superseded" / f"{n:04d}").exists())
            with _one_line(home):
                make_folder(home)
                for path in later:
                    os.rename(path, home / path.name)


@contextmanager
def _one_line(path: Path) -> Iterator[Path]:
    """A full disk or a lost permission, said in one line; what was there before is untouched."""
    try:
        yield path
    except OSError as problem:
        raise OSError(
            problem.errno, f"cannot write {path}: {problem.strerror or problem}; what was written before is intact"
        ) from problem


def _known_columns(rows: Iterable[Mapping[str, Any]], step: int | None) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        for name in row:
            if name not in BY_NAME:
                raise unknown_name("column of the record", name, BY_NAME)
        yield row if row.get("step") is not None or step is None else {**row, "step": step}


def _by_step(rollouts: Rollouts) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """The rows of each step, in the types of the record."""
    columns = dict(zip(rollouts.columns, rollouts.batch.columns, strict=True))
    arrays = [_stored(columns.get(field.name), field.type, len(rollouts)) for field in STORED]
    batch = pa.RecordBatch.from_arrays(arrays, schema=STORED)
    steps = rollouts.numbers("step")
    if steps is None:
        yield None, batch
        return
    for step in np.unique(steps):  # nan, a row without a step, comes last and once
        rows = np.flatnonzero(np.isnan(steps) if np.isnan(step) else steps == step)
        yield None if np.isnan(step) else int(step), batch if len(rows) == len(batch) else batch.take(pa.array(rows))


def _stored(array: pa.Array | None, kind: pa.DataType, n_rows: int) -> pa.Array:
    """An array in the record's type. Nan and infinity are stored as null."""
    if array is None:
        return pa.nulls(n_rows, kind)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_flat_list(kind):
        values = array.flatten()
        if values.null_count and not pa.types.is_floating(values.type):
            return array.cast(kind)
        numbers = values.to_numpy(zero_copy_only=False)  # a null among floats is nan here
        wanted = np.dtype(kind.value_type.to_pandas_dtype())
        if array.type == kind and (wanted.kind != "f" or values.null_count or np.isfinite(numbers).all()):
            return array
        if wanted.kind == "i" and numbers.size and np.abs(numbers).max() >= 2**31:
            raise UsageError(f"token ids up to {np.abs(numbers).max()} do not fit the record's int32")
        return with_values(array, numbers.astype(wanted), kind.value_type)
    if pa.types.is_floating(kind):
        numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return pa.array(numbers, type=kind, mask=~np.isfinite(numbers))
    return array if array.type == kind else array.cast(kind)


def _write_parquet(sink: Any, table: pa.Table) -> None:
    writer = pq.ParquetWriter(
        sink, STORED, compression="zstd", use_dictionary=_DICTIONARY, use_byte_stream_split=_SPLIT, store_schema=False
    )
    for start, stop in _row_groups(table):
        writer.write_table(table.slice(start, stop - start), row_group_size=stop - start)
    writer.close()


def _row_groups(table: pa.Table) -> Iterable[tuple[int, int]]:
    if 0 < table.num_rows <= ROW_GROUP_ROWS and 8 * table.nbytes <= ROW_GROUP_VALUES:  # a value takes a bit or more
        return [(0, table.num_rows)]
    return cut_points(_weights(table), ROW_GROUP_VALUES, ROW_GROUP_ROWS)


def _weights(table: pa.Table) -> np.ndarray:
    """For each row the values of its longest column."""
    heaviest = np.ones(table.num_rows)
    for column in table.columns:
        weights = None if column.null_count == len(column) else row_weights(column.combine_chunks())
        if weights is not None:
            heaviest = np.maximum(heaviest, weights)
    return heaviest


def _json(value: Any) -> bytes:
    return (json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "replace")
