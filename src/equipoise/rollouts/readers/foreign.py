"""What the readers of other tools' files share: looking at a first line, walking files in step order, naming leftovers."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from equipoise.errors import UsageError
from equipoise.files import open_bytes, parse_damaged_json, plain, read_json_lines
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.readers.mapping import ColumnMap
from equipoise.rollouts.rows import Warn, batches_of
from equipoise.rollouts.run import Warnings

T = TypeVar("T")

PEEK = 16 * 1024 * 1024  # bytes of a first line that `claims` is willing to look at


def first_object(path: Path) -> Mapping[str, Any] | None:
    """The first JSON object of a JSON-lines file, or None: for `claims`, which never raises."""
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return None
    return _first_object(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)  # every reader looks at the same first line
def _first_object(path: Path, _changed: int, _size: int) -> Mapping[str, Any] | None:
    try:
        with open_bytes(path) as handle:
            for _ in range(8):  # blank lines, at most
                line = handle.readline(PEEK + 1)
                if line.strip():
                    value = parse_damaged_json(line)[0] if len(line) <= PEEK else None
                    return value if isinstance(value, dict) else None
    except (OSError, EOFError, ValueError, zlib.error):
        return None
    return None


def first_bytes(path: Path, n: int) -> bytes:
    """The first bytes of a file, or none where it cannot be read."""
    try:
        with open(path, "rb") as handle:
            return handle.read(n)
    except OSError:
        return b""


def recognised(paths: Sequence[Path], known: Callable[[Mapping[str, Any] | None], bool]) -> list[Path]:
    """All the files if the first line of one of them is known: a damaged one among them is read with a warning, not dropped."""
    return list(paths) if any(known(first_object(path)) for path in paths) else []


def quiet(kind: str, message: str) -> None:
    """For a look ahead at a file whose warnings come when it is read."""


def lines_of(file: Path, warn: Warn = quiet) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file; an empty one is worth a warning."""
    empty = True
    for _, line in read_json_lines(file, warn=warn):
        empty = False
        yield line
    if empty:
        warn("empty-file", f"{file.name} holds no line that can be read")


def has_keys(value: Mapping[str, Any] | None, *keys: str) -> bool:
    return value is not None and all(key in value for key in keys)


def files_in(folder: Path, pattern: str) -> list[Path]:
    """Files of a folder in natural order (2 before 10); none where the folder cannot be read."""
    try:
        return sorted((p for p in folder.glob(pattern) if p.is_file()), key=natural)
    except OSError:
        return []


def natural(path: Path) -> list[tuple[int, int | str]]:
    """Sort key that reads the digits of a path as numbers."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", str(path)) if part]


def number_in(name: str) -> int | None:
    """The last whole number in a file or folder name."""
    found = re.findall(r"\d+", name)
    return int(found[-1]) if found and len(found[-1]) < 16 else None


def number(value: object) -> float | None:
    """A finite number as float; booleans, texts, nan and all else give None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # JSON has whole numbers of any length, of which a float holds 308 digits.
    return float(value) if (isinstance(value, float) and math.isfinite(value)) or abs(value) < 2**1023 else None


def numbers_among(source: Mapping[str, Any], skip: Container[str] = ()) -> dict[str, float]:
    """The entries that are numbers, for the `rewards` map."""
    found = {key: number(value) for key, value in source.items() if key not in skip}
    return {key: value for key, value in found.items() if value is not None}


def as_object(value: Any) -> dict[str, Any]:
    """A JSON object; an empty one for anything else."""
    return dict(value) if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """A JSON list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str | None:
    """A text, or a number as text; None for anything else."""
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def zero_or_one(value: object) -> bool | None:
    """A verdict: a truth value, or a number that is exactly 0 or 1. Anything between is a score, not a verdict."""
    if isinstance(value, bool):
        return value
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def leftovers(source: Mapping[str, Any], used: Container[str]) -> str | None:
    """What a reader does not map, as the JSON of the `extra` column."""
    rest = {key: value for key, value in source.items() if key not in used and value is not None}
    return json.dumps(plain(rest), ensure_ascii=False, default=str) if rest else None


def wanted(columns: Sequence[str] | None, *names: str) -> bool:
    """Whether any of the named columns was asked for, so that costly ones can be skipped."""
    return columns is None or any(name in columns for name in names)


def text_of(content: Any) -> str | None:
    """The text of a chat message's content: a string, or a list of parts of which the text ones count."""
    if isinstance(content, str) or content is None:
        return content
    if isinstance(content, list):
        parts = [p if isinstance(p, str) else p.get("text") for p in content if isinstance(p, str | Mapping)]
        return "".join(p for p in parts if isinstance(p, str))
    return None


def chat_of(messages: Any) -> list[dict[str, str | None]] | None:
    """Role and text of each message, or None where it is not a conversation."""
    if not isinstance(messages, list) or not messages or not all(isinstance(m, Mapping) for m in messages):
        return None
    return [{"role": m.get("role"), "content": text_of(m.get("content"))} for m in messages]


Rows = Callable[[Sequence[str] | None, Warn], Iterator[Mapping[str, Any]]]  # (columns asked for, warn) → rows


def streaming(
    path: Path, rows: Rows, named: ColumnMap, warnings: Warnings
) -> Callable[[Sequence[str] | None], Iterator[Rollouts]]:
    """The `stream` of a Run from a function that gives rows keyed by the record's names, some of them by the caller's map."""

    def stream(columns: Sequence[str] | None) -> Iterator[Rollouts]:
        warn = warnings.one_pass()
        return named.check(path, batches_of(rows(columns, warn), columns, warn), columns, warn)

    return stream


def require(found: Iterable[T], path: Path, *, what: str) -> list[T]:
    """The files to read, or one line saying that the folder holds none."""
    found = list(found)
    if not found:
        raise UsageError(f"{path} holds no {what}; give the folder that the tool wrote, or one of its files")
    return found
