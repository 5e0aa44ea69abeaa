"""Problems from a file of rows: JSON lines or Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError
from equipoise.files import is_parquet, read_json_lines

MAX_ROWS = 1_000_000
CACHED = 4  # files


@lru_cache(maxsize=CACHED)
def read_rows(path: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of a problem file, in its order. A line that is not a JSON object is an error: a task has no torn ones."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"there is no problem file '{path}': give JSON lines (.jsonl, also .gz) or Parquet (.parquet)")
    rows = _parquet(file) if file.suffix == ".parquet" or is_parquet(file) else _json_lines(file)
    if not rows:
        raise UsageError(f"the problem file '{path}' has no rows")
    return tuple(rows)


def _parquet(file: Path) -> list[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as source:
            if source.metadata.num_rows > MAX_ROWS:
                raise UsageError(f"'{file}' has {source.metadata.num_rows} rows: give at most {MAX_ROWS}")
            rows: list[dict[str, Any]] = source.read().to_pylist()
            return rows
    except pyarrow.ArrowInvalid as problem:
        raise UsageError(f"'{file}' is no Parquet file: {problem}") from problem


def _json_lines(file: Path) -> list[dict[str, Any]]:
    def refuse(_kind: str, text: str) -> None:
        fault = text.removesuffix(" and was skipped").removesuffix("; the bytes that are not were replaced")
        raise UsageError(f"{fault}: a problem file must be whole")

    rows = []
    for _, row in read_json_lines(file, warn=refuse):
        rows.append(row)
        if len(rows) > MAX_ROWS:
            raise UsageError(f"'{file}' has more than {MAX_ROWS} rows")
    return rows


def cell(row: Mapping[str, Any], names: Sequence[str], *, path: str) -> Any:
    """The first of these columns that the row has."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise UsageError(
        f"a row of '{path}' has none of the columns {', '.join(names)}: found {', '.join(row) or 'nothing'}"
    )
