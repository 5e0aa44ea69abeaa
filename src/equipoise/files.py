"""Files in and out: atomic writes, and JSON lines read with caps so that a hostile or torn file cannot hurt."""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from equipoise.errors import UsageError

MAX_LINE = 64 * 1024 * 1024  # bytes of one JSON line
MAX_DOCUMENT = 1024 * 1024 * 1024  # bytes of one whole JSON document, after decompression
MAX_DEPTH = 64  # nesting of one JSON value


@contextmanager
def atomic_write(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Write to a temporary name beside `path`, fsync, rename: a reader sees the old file or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, value: Any) -> None:
    """Append one JSON line in a single write, after closing a line that a crash left open."""
    data = (json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as handle:
        if handle.tell() > 0:
            handle.seek(-1, os.SEEK_END)
            if handle.read(1) != b"\n":
                data = b"\n" + data
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


def plain(value: Any) -> Any:
    """JSON has no nan or infinity: they become null, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def open_bytes(path: Path) -> IO[bytes]:
    """Open for reading, through gzip where the content says so whatever the name is."""
    try:
        with open(path, "rb") as head:
            zipped = head.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rb") if zipped else open(path, "rb")  # type: ignore[return-value]
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror or problem}") from problem


def read_json_lines(path: Path, *, warn: Callable[[str, str], None]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a JSON-lines file. Lines that cannot be used are skipped, each kind with a warning.

    A torn last line (a crash while writing) and a gzip stream cut short are warnings; so is a line that is not
    a JSON object. A line over 64 MB is an error: nothing that a trainer writes is that long.
    """
    with open_bytes(path) as handle:
        number = 0
        while True:
            try:
                line = handle.readline(MAX_LINE + 1)
            except (EOFError, gzip.BadGzipFile, zlib.error):
                warn(
                    "truncated",
                    f"{path.name}: the gzip stream ends early after line {number}; the lines before it are used",
                )
                return
            if not line:
                return
            number += 1
            if len(line) > MAX_LINE:
                raise UsageError(
                    f"{path}: line {number} is longer than {MAX_LINE // 2**20} MB; split the file into one JSON object a line"
                )
            if not line.strip():
                continue
            try:
                value = parse_json(line)
            except ValueError as problem:
                if not line.endswith(b"\n"):
                    warn("truncated", f"{path.name}: the last line ({number}) is cut off and was skipped")
                else:
                    warn("bad-line", f"{path.name}: line {number} is not JSON ({problem}) and was skipped")
                continue
            if not isinstance(value, dict):
                warn(
                    "bad-line",
                    f"{path.name}: line {number} holds a {type(value).__name__}, not an object, and was skipped",
                )
                continue
            yield number, value


def read_json(path: Path) -> Any:
    """One JSON document, capped in size and depth."""
    with open_bytes(path) as handle:
        try:
            data = handle.read(MAX_DOCUMENT + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
            raise UsageError(f"{path}: the gzip stream ends early; copy the file again") from problem
    if len(data) > MAX_DOCUMENT:
        raise UsageError(f"{path}: a JSON document over {MAX_DOCUMENT // 2**20} MB; give JSON lines instead")
    try:
        return parse_json(data)
    except ValueError as problem:
        raise UsageError(f"{path} is not JSON: {problem}") from problem


def parse_json(data: bytes | str) -> Any:
    """`json.loads` that refuses deep nesting with a ValueError instead of exhausting the stack."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from None
    opened = data.count(b"[") + data.count(b"{") if isinstance(data, bytes) else data.count("[") + data.count("{")
    if opened > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    return value


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        level = [i for v in level if isinstance(v, dict | list) for i in (v.values() if isinstance(v, dict) else v)]
        depth += 1
    return depth
