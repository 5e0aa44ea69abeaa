"""Plain files of rollouts: JSON lines, JSON, CSV or Parquet, gzipped or not, alone or as a folder of them.

One row per completion, or one per prompt with lists of completions, answers and scores. Columns have the record's names or
common other ones (`aliases.py`); `columns={"prompt_id": "puzzle_idx"}` names what cannot be guessed. The rest goes to
`extra`. `correct` is never made of a score, nor an answer of a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.readers.aliases import CONTENT, Names, check_given, match_names, unusable
from equipoise.rollouts.readers.foreign import wanted
from equipoise.rollouts.readers.mapping import check_map
from equipoise.rollouts.readers.plain_parquet import ParquetTable
from equipoise.rollouts.readers.plain_rows import Identity, numbers_rows, record_rows
from equipoise.rollouts.readers.sources import Row, as_csv, format_of, list_files, read_rows
from equipoise.rollouts.rows import KeyFiller, Warn, batches_of, size_of
from equipoise.rollouts.run import Run, RunInfo, Warnings

PEEK_ROWS, PEEK_CELLS, PEEK_VALUES = 1000, 4_000_000, 20
_KNOWN_SHAPES = 256  # sets of keys remembered; a file where every row has other keys is read all the same
_STEP = re.compile(r"(?:^|[^a-z])step[-_=]?(\d{1,15})(?!\d)", re.IGNORECASE)


def claims(path: Path) -> bool:
    return bool(list_files(path)[0]) if path.is_dir() else format_of(path) is not None


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    return _open(path, partial(_table, given=check_map(columns)))


def open_baseline(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    """`open` with a map that was written for another source: see `check_given`."""
    return _open(path, partial(_table, given=check_map(columns), for_another=True))


def _open(path: Path, table_of: Callable[[Path], RowTable | ParquetTable]) -> Run:
    warnings = Warnings()
    tables = _folder(path, table_of, warnings) if path.is_dir() else [table_of(path)]

    def stream(asked: Sequence[str] | None) -> Iterator[Rollouts]:
        warn = warnings.one_pass()
        keys = KeyFiller(warn)
        for table in tables:
            step = None if "step" in table.names.source else _step_of(table.path)
            if step is not None:
                warn("step-from-name", f"{table.path.name} has no step column; step {step} is taken from its name")
            if set(table.names.source) & set(CONTENT) == {"answer"}:
                warn("answer-only", f"{table.path.name}: answer is taken for the model's; nothing says which are right")
            yield from table.stream(asked, step, keys, warn)

    return Run(path, RunInfo(source="plain"), stream, warnings=warnings)


def _table(path: Path, given: Mapping[str, str], for_another: bool = False) -> RowTable | ParquetTable:
    kind = ParquetTable if format_of(path) == "parquet" else RowTable
    return kind(path, given, for_another=for_another)


def _folder(
    path: Path, table_of: Callable[[Path], RowTable | ParquetTable], warn: Warn
) -> list[RowTable | ParquetTable]:
    files, others = list_files(path)
    tables: list[RowTable | ParquetTable] = []
    problems = []
    for file in files:
        try:
            tables.append(table_of(file))
        except UsageError as problem:
            problems.append(problem)
            warn("skipped-file", f"{file.name} was left out: {problem}")
    if not tables:
        raise problems[0] if len(problems) == 1 else UsageError(f"{path} holds no file of rollouts: {problems[0]}")
    if others:
        warn(
            "ignored-files",
            f"{path.name} holds {len(others)} files of other kinds, such as {others[0].name}, which were not read",
        )
    return tables


def _step_of(path: Path) -> int | None:
    """The step that a file or its folder is named after: eval_step_200.jsonl, step=000123/part-0000.parquet."""
    found = _STEP.search(path.name) or _STEP.fullmatch(path.parent.name)
    return int(found[1]) if found else None


class RowTable:
    """A JSON or CSV file. Its first rows say what its columns hold; each row is then read by the keys that it has."""

    def __init__(self, path: Path, given: Mapping[str, str], *, for_another: bool = False) -> None:
        self.path = path
        problems = Warnings()
        rows = _first_rows(path, problems)
        if not rows:
            if path.stat().st_size == 0:
                raise UsageError(f"{path} is empty")
            name = None if format_of(path) == "csv" else as_csv(path)
            raise UsageError(
                f"{path} holds no row that can be read"
                + "".join(f" ({line})" for line in problems.lines()[:1])
                + (f": it looks like CSV, name it {name}" if name else "")
            )
        self._samples: dict[str, list[Any]] = {}
        for row in rows:
            for name, value in row.items():
                held = self._samples.setdefault(name, [])
                if value is not None and len(held) < PEEK_VALUES:
                    held.append(value)
        self._given = check_given(path, given, self._samples, for_another=for_another)
        self._numbers_rows = self._row_numbers(rows)
        self.names = self._match(self._samples)
        if not self.names.usable:
            raise unusable(path, self._samples)

    def _match(self, samples: Mapping[str, Sequence[Any]]) -> Names:
        return match_names(samples, self._given, numbers_rows=self._numbers_rows)

    def _row_numbers(self, rows: list[Row]) -> list[str]:
        names = match_names(self._samples, self._given).source
        found, prompt = names.get("prompt_id"), names.get("prompt") or names.get("messages")
        if found is None or prompt is None:
            return []
        return [found] if numbers_rows([row.get(found) for row in rows], [row.get(prompt) for row in rows]) else []

    def stream(self, asked: Sequence[str] | None, step: int | None, keys: KeyFiller, warn: Warn) -> Iterator[Rollouts]:
        return batches_of(self._rows(asked, step, warn), asked, warn, keys=keys)

    def _rows(self, asked: Sequence[str] | None, step: int | None, warn: Warn) -> Iterator[dict[str, Any]]:
        identity = Identity(self.names, warn)
        shapes: dict[tuple[str, ...], Names] = {}
        for row in read_rows(self.path, warn):
            keys = tuple(row)
            names = shapes.get(keys)
            if names is None:
                names = self._match({key: self._samples.get(key) or [row[key]] for key in keys})
                self._note(names, shapes.values(), warn)
                if len(shapes) < _KNOWN_SHAPES:
                    shapes[keys] = names
            for cells in record_rows(row, names, warn, with_extra=wanted(asked, "extra")):
                identity.fix(cells, names)
                yield cells if step is None or cells.get("step") is not None else cells | {"step": step}

    def _note(self, names: Names, earlier: Any, warn: Warn) -> None:
        note = names.note()
        if note is not None and note not in {before.note() for before in earlier}:
            warn("columns", f"{self.path.name}: {note}")
        if any(before.source != names.source for before in earlier):
            warn(
                "mixed-schema", f"{self.path.name}: not all rows have the same columns; what a row lacks is null there"
            )


def _first_rows(path: Path, warn: Warn) -> list[Row]:
    rows: list[Row] = []
    cells = 0
    for row in read_rows(path, warn):
        rows.append(row)
        cells += sum(size_of(value) for value in row.values())
        if len(rows) >= PEEK_ROWS or cells >= PEEK_CELLS:
            break
    return rows
