"""Files in and out: atomic writes, and JSON read with caps so that a hostile or torn file cannot hurt."""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import json
import math
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

from equipoise.errors import UsageError

MAX_LINE = 64 * 1024 * 1024  # bytes of one JSON line, or of one element of a JSON array
MAX_DOCUMENT = (
    256 * 1024 * 1024
)  # bytes of one whole JSON document, after decompression; Python needs up to 24 times that
MAX_DEPTH = 64  # nesting of one JSON value

CUT_SHORT = (EOFError, gzip.BadGzipFile, zlib.error)  # what a gzip stream that ends early raises

# Bytes that are no text are decoded to a half surrogate, which no valid UTF-8 or UTF-16 decodes to: a file may hold a '�' of its own.
MARK_BAD_BYTES = "equipoise-mark"
_MARK = "\udc80"


def _mark(problem: UnicodeError) -> tuple[str, int]:
    if not isinstance(problem, UnicodeDecodeError):
        raise problem
    return _MARK, problem.end


codecs.register_error(MARK_BAD_BYTES, _mark)


def replace_bad_bytes(text: str) -> tuple[str, bool]:
    """(text with '�' for what `MARK_BAD_BYTES` marked, whether anything was)."""
    return (text.replace(_MARK, "\ufffd"), True) if _MARK in text else (text, False)


@contextmanager
def atomic_write(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Write to a temporary name beside `path`, fsync, rename: a reader sees the old file or the new one, never half."""
    with _temporary(path, mode) as (handle, temporary):
        yield handle
        _finish(handle)
        os.replace(temporary, path)
    _sync_folder(path.parent)


@contextmanager
def atomic_create(names: Iterable[Path], mode: str = "wb") -> Iterator[IO[Any]]:
    """Like `atomic_write`, under the first of `names` that is free when the file is complete: nothing is overwritten.

    Two processes that race for one name get two names. `FileExistsError` when every name is taken.
    """
    names = iter(names)
    first = next(names)
    with _temporary(first, mode) as (handle, temporary):
        yield handle
        _finish(handle)
        for path in chain([first], names):
            if _publish(temporary, path):
                break
        else:
            raise FileExistsError(errno.EEXIST, "the file exists", str(first))
    _sync_folder(first.parent)


@contextmanager
def _temporary(path: Path, mode: str) -> Iterator[tuple[IO[Any], Path]]:
    make_folder(path.parent)
    # The random part keeps two hosts apart that share a disk and, by chance, a process number.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as handle:
            yield handle, temporary
    finally:
        temporary.unlink(missing_ok=True)


def _finish(handle: IO[Any]) -> None:
    handle.flush()
    os.fsync(handle.fileno())
    handle.close()


def _publish(temporary: Path, path: Path) -> bool:
    """Give a complete file its name, unless the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a disk without hard links: here a race of two writers could overwrite
        if path.exists():
            return False
        os.replace(temporary, path)
    return True


def make_folder(folder: Path) -> None:
    """Create a folder and its parents so that they survive a power cut."""
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync_folder(made.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, value: Any) -> None:
    """Append one JSON line in a single write, after closing a line that a crash left open."""
    append_lines(path, [value])


def append_lines(path: Path, values: Iterable[Any]) -> None:
    """Append JSON lines in a single write, and wait until the disk has them."""
    lines = (json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n" for value in values)
    data = "".join(lines).encode("utf-8", "replace")
    make_folder(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain(value: Any) -> Any:
    """JSON has no nan or infinity: they become null, at any depth. Numpy scalars and arrays become plain numbers."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return value


def open_bytes(path: Path) -> IO[bytes]:
    """Open for reading, through gzip where the content says so whatever the name is."""
    try:
        with open(path, "rb") as head:
            zipped = head.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rb") if zipped else open(path, "rb")  # type: ignore[return-value]
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror or problem}") from problem


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet by its first bytes, whatever its name is."""
    try:
        with open(path, "rb") as handle:
            return handle.read(4) == b"PAR1"
    except OSError:
        return False


def encoding_of(head: bytes) -> str:
    """The encoding that a byte-order mark announces; UTF-8 otherwise."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


@contextmanager
def _lines_of(path: Path) -> Iterator[IO[Any]]:
    """A handle whose `readline` gives bytes, or text where the file is UTF-16 (a Windows shell's `>` writes that)."""
    with open_bytes(path) as handle:
        try:
            head = handle.read(2)
            handle.seek(0)
        except CUT_SHORT:
            head = b""
        yield io.TextIOWrapper(handle, "utf-16", errors=MARK_BAD_BYTES) if encoding_of(head) == "utf-16" else handle


def read_json_lines(path: Path, *, warn: Callable[[str, str], None]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a JSON-lines file. Lines that cannot be used are skipped, each kind with a warning.

    A torn last line (a crash while writing) and a gzip stream cut short are warnings; so is a line that is not
    a JSON object. Bytes that are no text become '�', with a warning. A line over 64 MB is an error: nothing that a
    trainer writes is that long.
    """
    with _lines_of(path) as handle:
        number = 0
        while True:
            try:
                line = handle.readline(MAX_LINE + 1)
            except CUT_SHORT:
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
                value, replaced = parse_damaged_json(line)
            except ValueError as problem:
                if not line.endswith(b"\n" if isinstance(line, bytes) else "\n"):
                    warn("truncated", f"{path.name}: the last line ({number}) is cut off and was skipped")
                else:
                    warn("bad-line", f"{path.name}: line {number} is not JSON ({problem}) and was skipped")
                continue
            if replaced:
                warn("encoding", not_text(path, f"line {number}"))
            if not isinstance(value, dict):
                warn(
                    "bad-line",
                    f"{path.name}: line {number} holds a {type(value).__name__}, not an object, and was skipped",
                )
                continue
            yield number, value


def read_json_array(path: Path, *, warn: Callable[[str, str], None]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(position from 1, object) of a JSON document that is one array, an element at a time: the file is never held whole."""
    decoder = json.JSONDecoder()
    with open_bytes(path) as handle:
        text = _Window(path, handle, warn)
        if text.skip(" \t\r\n") != "[":
            raise UsageError(f"{path} is not a JSON array")
        text.at += 1
        number = 0
        while True:
            following = text.skip(" \t\r\n,")
            if following == "]":
                return
            if following == "":
                warn(
                    "truncated",
                    f"{path.name}: the array ends early after element {number}; the elements before it are used",
                )
                return
            try:
                value, end = decoder.raw_decode(text.held, text.at)
            except RecursionError:
                raise UsageError(
                    f"{path}: element {number + 1} of the array is nested deeper than {MAX_DEPTH}"
                ) from None
            except json.JSONDecodeError as problem:
                if text.may_go_on(problem) and text.more():
                    continue
                if len(text.held) - text.at > MAX_LINE:
                    raise UsageError(
                        f"{path}: element {number + 1} of the array is longer than {MAX_LINE // 2**20} MB"
                    ) from None
                warn(
                    "truncated",
                    f"{path.name}: element {number + 1} is cut off or not JSON; only the {number} before it are used",
                )
                return
            text.at = end
            number += 1
            if not isinstance(value, dict):
                warn(
                    "bad-line",
                    f"{path.name}: element {number} is a {type(value).__name__}, not an object, and was skipped",
                )
            elif _depth(value) > MAX_DEPTH:
                warn("bad-line", f"{path.name}: element {number} is nested deeper than {MAX_DEPTH} and was skipped")
            else:
                yield number, value


class _Window:
    """A sliding piece of a file's text. It grows twofold while one element needs more, so that decoding stays linear."""

    def __init__(self, path: Path, handle: IO[bytes], warn: Callable[[str, str], None]) -> None:
        self._path, self._handle, self._warn = path, handle, warn
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(MARK_BAD_BYTES)
        self.held, self.at, self.ended = "", 0, False

    def more(self) -> bool:
        """Read on; False at the end of the file and where one element is over the cap."""
        rest = self.held[self.at :]
        if self.ended or len(rest) > MAX_LINE:
            return False
        try:
            data = self._handle.read(min(max(1 << 16, len(rest)), MAX_LINE + 1 - len(rest)))
        except CUT_SHORT:
            data = b""
        self.ended = not data
        read, replaced = replace_bad_bytes(self._decode.decode(data, final=self.ended))
        if replaced:
            self._warn("encoding", not_text(self._path, "the array"))
        self.held, self.at = rest + read, 0
        return not self.ended

    def may_go_on(self, problem: json.JSONDecodeError) -> bool:
        """Whether reading on could mend it: the text ends inside a string, or within a few characters of the trouble."""
        return problem.msg.startswith("Unterminated") or problem.pos > len(self.held) - 16

    def skip(self, characters: str) -> str:
        """The next character that is none of these, or '' at the end of the file."""
        while True:
            while self.at < len(self.held):
                if self.held[self.at] not in characters:
                    return self.held[self.at]
                self.at += 1
            if not self.more():
                return ""


def read_json(path: Path) -> Any:
    """One JSON document, capped in size and depth."""
    with open_bytes(path) as handle:
        try:
            data = handle.read(MAX_DOCUMENT + 1)
        except CUT_SHORT as problem:
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


def parse_damaged_json(line: bytes | str) -> tuple[Any, bool]:
    """(`parse_json` of a line with '�' for the bytes that are no text, whether there were any)."""
    if isinstance(line, bytes):
        try:
            return parse_json(line), False
        except UnicodeDecodeError:
            return parse_json(line.decode("utf-8-sig", "replace")), True
    line, replaced = replace_bad_bytes(line)
    return parse_json(line), replaced


def not_text(path: Path, where: str) -> str:
    """The warning for bytes that are no text."""
    return f"{path.name}: {where} is not UTF-8; the bytes that are not were replaced"


def _depth(value: Any) -> int:
    """Nesting of lists and objects, counted no further than one past the cap."""
    depth, level = 0, [value] if isinstance(value, dict | list) else []
    while level and depth <= MAX_DEPTH:
        inside = (v.values() if isinstance(v, dict) else v for v in level)
        level = [item for items in inside for item in items if isinstance(item, dict | list)]
        depth += 1
    return depth
