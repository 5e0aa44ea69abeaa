"""Rows of JSON lines, JSON documents and CSV files, gzipped or not, as dicts; told apart by what is inside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal

from equipoise.errors import UsageError
from equipoise.files import (
    CUT_SHORT,
    MARK_BAD_BYTES,
    MAX_DOCUMENT,
    MAX_LINE,
    encoding_of,
    is_parquet,
    not_text,
    open_bytes,
    parse_damaged_json,
    read_json,
    read_json_array,
    read_json_lines,
    replace_bad_bytes,
)
from equipoise.rollouts.readers.foreign import natural
from equipoise.rollouts.rows import Warn

Format = Literal["json", "csv", "parquet"]
Row = dict[str, Any]

_SUFFIXES: dict[str, Format] = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
# Where tools put the rows of a document that is one object.
_ROWS_UNDER = ("rollouts", "rows", "samples", "data", "results", "examples", "records", "instances", "generations")


def format_of(path: Path) -> Format | None:
    """The format, by the name and else by the first bytes; None where it is none of ours. Parquet goes by its bytes always."""
    if is_parquet(path):
        return "parquet"
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if suffix.lower() in _SUFFIXES:
        return _SUFFIXES[suffix.lower()]
    try:
        with open_bytes(path) as handle:
            head = handle.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")
    except (UsageError, *CUT_SHORT, OSError):
        return None
    return "json" if head[:1] in (b"{", b"[") else None


def as_csv(path: Path) -> str | None:
    """What to call a file that is named otherwise and looks like CSV: a header and a row of as many fields, two or more. Else None."""
    try:
        with open_bytes(path) as handle:
            head = handle.read(2)
            handle.seek(0)
            text = io.TextIOWrapper(handle, encoding_of(head), newline="")
            first = text.readline(1 << 16)
            lines = chain([first], iter(lambda: text.readline(1 << 16), ""))
            header, row = islice(csv.reader(lines, delimiter=max(",;\t", key=first.count)), 2)
    except (UsageError, *CUT_SHORT, OSError, csv.Error, ValueError):  # ValueError: no text, or fewer than two rows
        return None
    if first[:1] in ("{", "[") or not len(row) == len(header) > 1 or len({*header} - {""}) < len(header):
        return None
    packed = ".gz" if path.suffix == ".gz" else ""
    return f"{Path(path.name.removesuffix('.gz')).stem}.csv{packed}"


def list_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """(files of a format read here, other files) directly in a folder, in the order a person counts; hidden ones are passed over."""
    files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith((".", "_"))]
    files.sort(key=natural)
    ours = [path for path in files if format_of(path) is not None]
    return ours, [path for path in files if path not in ours]


def read_rows(path: Path, warn: Warn) -> Iterator[Row]:
    """The rows of a JSON or CSV file."""
    return read_csv(path, warn) if format_of(path) == "csv" else _read_json_rows(path, warn)


def _read_json_rows(path: Path, warn: Warn) -> Iterator[Row]:
    first, only = _first_line(path)
    if first[:1] in ("[", b"["):
        return (row for _, row in read_json_array(path, warn=warn))
    value, replaced = _parsed(first)
    document = value if only else None
    if value is None and first and path.stat().st_size <= MAX_DOCUMENT:
        try:
            document = read_json(path)  # an object written over several lines
        except UsageError:
            document = None  # lines, of which the first is bad
    if isinstance(document, dict):
        if replaced:
            warn("encoding", not_text(path, "the document"))
        return iter(_rows_inside(document) or [document])
    return (row for _, row in read_json_lines(path, warn=warn))


def _parsed(line: bytes | str) -> tuple[Any, bool]:
    try:
        return parse_damaged_json(line)
    except ValueError:
        return None, False


def _first_line(path: Path) -> tuple[bytes | str, bool]:
    """The first line that is not blank, and whether nothing comes after it."""
    with open_bytes(path) as handle:
        try:
            head = handle.read(2)
            handle.seek(0)
            lines: IO[Any] = (
                io.TextIOWrapper(handle, "utf-16", errors=MARK_BAD_BYTES) if encoding_of(head) == "utf-16" else handle
            )
            line = lines.readline(MAX_LINE + 1)
            while line and not line.strip():
                line = lines.readline(MAX_LINE + 1)
            rest = lines.read(64)
        except CUT_SHORT:
            return b"", False
    if isinstance(line, bytes):
        line = line.removeprefix(b"\xef\xbb\xbf")
    return line.strip(), not rest.strip()


def _rows_inside(document: Row) -> list[Row] | None:
    for name in _ROWS_UNDER:
        rows = document.get(name)
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            return rows
    return None


def read_csv(path: Path, warn: Warn) -> Iterator[Row]:
    """Rows of a CSV file with a header, by column; an empty field is None. Commas, semicolons or tabs; UTF-8 or UTF-16."""
    csv.field_size_limit(MAX_LINE)
    with open_bytes(path) as handle:
        lines = _text_lines(path, handle, warn)
        header_line = next(lines, "")
        delimiter = max(",;\t", key=header_line.count)
        try:
            header = [name.strip() for name in next(csv.reader([header_line], delimiter=delimiter), [])]
            twice = {name for name in header if header.count(name) > 1 and name}
            if twice:
                raise UsageError(f"{path} has more than one column named {', '.join(sorted(twice))}; rename them")
            reader = csv.reader(lines, delimiter=delimiter)
            short: tuple[int, int] | None = None
            for fields in reader:
                if short is not None:
                    warn(
                        "bad-line",
                        f"{path.name}: line {short[0]} has {short[1]} fields, the header {len(header)}; it was skipped",
                    )
                    short = None
                if not fields:
                    continue
                if len(fields) != len(header):
                    short = (reader.line_num + 1, len(fields))
                    continue
                yield {name: field if field != "" else None for name, field in zip(header, fields, strict=True) if name}
            if short is not None:
                warn(
                    "truncated",
                    f"{path.name}: the last line has {short[1]} fields, the header {len(header)}; it was skipped",
                )
        except csv.Error as problem:
            raise UsageError(f"{path} is not a CSV file that can be read: {problem}") from problem


def _text_lines(path: Path, handle: IO[bytes], warn: Warn) -> Iterator[str]:
    """Lines with a cap on their length; a gzip stream that ends early ends them with a warning."""
    number = 0
    try:
        head = handle.read(2)
        handle.seek(0)
        text = io.TextIOWrapper(handle, encoding_of(head), errors=MARK_BAD_BYTES, newline="")
        while line := text.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise UsageError(f"{path}: line {number} is longer than {MAX_LINE // 2**20} MB")
            line, replaced = replace_bad_bytes(line)
            if replaced:
                warn("encoding", not_text(path, f"line {number}"))
            yield line
    except CUT_SHORT:
        warn("truncated", f"{path.name}: the gzip stream ends early after line {number}; the lines before it are used")
