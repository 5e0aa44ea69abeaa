"""Reading a zip of JSON members without extracting it: stored, deflated and Zstandard members, with caps against bombs.

Python's `zipfile` reads Zstandard (method 93) only from 3.14 on; pyarrow's codec does it here.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from equipoise.errors import UsageError
from equipoise.files import parse_json
from equipoise.rollouts.rows import Warn

ZSTD = 93
LOCAL_HEADER = 30  # bytes before the member's name
MAX_MEMBERS = 2_000_000
MAX_MEMBER = 512 * 1024 * 1024  # bytes of one member, decompressed
MAX_RATIO = 1000  # decompressed to compressed, for members over 16 MB and for the whole archive
SMALL = 16 * 1024 * 1024


class EvalZip:
    """The members of an archive by name. Opening checks sizes; reading a member checks them again as it goes."""

    def __init__(self, path: Path, warn: Warn) -> None:
        self._path, self._warn = path, warn
        try:
            with zipfile.ZipFile(path) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as problem:
            raise UsageError(
                f"{path} is not a complete .eval archive ({problem}); copy the file again, or recover it with inspect"
            ) from problem
        total = sum(info.file_size for info in infos)
        if len(infos) > MAX_MEMBERS or total > max(MAX_RATIO * path.stat().st_size, SMALL):
            raise UsageError(
                f"{path}: {len(infos)} members of {total / 2**30:.1f} GB in {path.stat().st_size / 2**20:.1f} MB looks like a zip bomb and was not read"
            )
        self._members = {info.filename: info for info in infos if self._safe(info)}

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def names(self, prefix: str) -> Iterator[str]:
        return (name for name in self._members if name.startswith(prefix) and name.endswith(".json"))

    def read_json(self, name: str) -> Any:
        """One member's JSON; None with a warning where it is damaged."""
        try:
            return parse_json(self._bytes(self._members[name]))
        except (ValueError, OSError, zlib.error) as problem:
            self._warn("bad-member", f"{self._path.name}: {name} could not be read ({problem}) and was skipped")
            return None

    def _safe(self, info: zipfile.ZipInfo) -> bool:
        name = info.filename
        problem = None
        if name.startswith("/") or "\\" in name or ".." in name.split("/"):
            problem = "its name leaves the archive"
        elif info.flag_bits & 1:
            problem = "it is encrypted"
        elif info.file_size > MAX_MEMBER or (
            info.file_size > SMALL and info.file_size > MAX_RATIO * info.compress_size
        ):
            problem = f"{info.file_size / 2**20:.0f} MB in {info.compress_size / 2**20:.1f} MB is more than is read"
        if problem:
            self._warn("refused-member", f"{self._path.name}: {name[:80]!r} was skipped: {problem}")
        return problem is None

    def _bytes(self, info: zipfile.ZipInfo) -> bytes:
        with open(self._path, "rb") as handle:
            handle.seek(info.header_offset)
            header = handle.read(LOCAL_HEADER)
            if len(header) < LOCAL_HEADER or header[:4] != b"PK\x03\x04":
                raise ValueError("no member starts there")
            handle.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)
            packed = handle.read(info.compress_size)
        data = _unpack(packed, info.compress_type, info.file_size)
        if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
            raise ValueError("size or checksum differ from the directory")
        return data


def _unpack(packed: bytes, method: int, size: int) -> bytes:
    """At most `size` + 1 bytes of the decompressed member, whatever the stream holds."""
    if method == zipfile.ZIP_STORED:
        return packed[: size + 1]
    if method == zipfile.ZIP_DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, size + 1)
    if method == ZSTD:
        with pa.input_stream(pa.BufferReader(packed), compression="zstd") as stream:
            return bytes(stream.read(size + 1))
    raise ValueError(f"compression method {method} is not known here")
