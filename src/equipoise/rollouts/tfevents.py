"""Scalars of a TensorBoard event file, with the standard library only.

A file is a row of TFRecords: length (uint64), its checksum, the bytes, their checksum; checksums are masked CRC-32C.
The bytes are an `Event` in protobuf's wire format, of which a handful of fields is read:

    Event    1 wall_time (double)   2 step (int64)   5 summary
    Summary  1 value, repeated
    Value    1 tag   2 simple_value (float)   8 tensor   9 metadata {1 plugin_data {1 plugin_name}}
    Tensor   1 dtype   4 tensor_content   5 float_val   6 double_val   7 int_val   10 int64_val

https://github.com/tensorflow/tensorboard/tree/master/tensorboard/compat/proto
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from equipoise.errors import UsageError

Warn = Callable[[str, str], None]

MAX_RECORD = 1024 * 1024  # bytes; a record of scalars has a few hundred. Longer ones (graphs, images) are passed over
_MASK_DELTA = 0xA282EAD8
_CONTENT = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}  # dtype of a tensor → layout of one element in tensor_content


@dataclass(frozen=True, slots=True)
class Scalar:
    tag: str
    step: int
    value: float
    wall_time: float


def read_scalars(path: Path, *, warn: Warn) -> Iterator[Scalar]:
    """Every finite scalar in file order. A torn end and damaged records are warnings; a file of another kind is an error."""
    try:
        handle = open(path, "rb")  # noqa: SIM115 -- closed below, after the error has been told apart
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror or problem}") from problem
    with handle:
        for record in _records(handle, path, warn):
            try:
                yield from _scalars(record)
            except (ValueError, struct.error) as problem:
                warn("corrupt", f"{path.name}: a record is not a TensorBoard event ({problem}) and was skipped")


def looks_like_events(head: bytes) -> bool:
    """Whether the first 12 bytes frame a TFRecord: a length followed by its checksum."""
    return len(head) >= 12 and _masked_crc(head[:8]) == int.from_bytes(head[8:12], "little")


def _records(handle: IO[bytes], path: Path, warn: Warn) -> Iterator[bytes]:
    number = 0
    while header := handle.read(12):
        number += 1
        if number == 1 and not looks_like_events(header):
            raise UsageError(f"{path} is not a TensorBoard event file: its first record has no valid checksum")
        if len(header) < 12:
            warn("truncated", f"{path.name}: the last record is cut off and was skipped")
            return
        if not looks_like_events(header):
            warn("corrupt", f"{path.name}: damaged at record {number}; what follows cannot be read and was left out")
            return
        length = int.from_bytes(header[:8], "little")
        if length > MAX_RECORD:
            if not _skip(handle, length + 4):
                warn("truncated", f"{path.name}: the last record is cut off and was skipped")
                return
            continue
        body = handle.read(length + 4)
        if len(body) < length + 4:
            warn("truncated", f"{path.name}: the last record is cut off and was skipped")
            return
        if _masked_crc(body[:length]) != int.from_bytes(body[length:], "little"):
            warn("corrupt", f"{path.name}: record {number} fails its checksum and was skipped")
            continue
        yield body[:length]


def _skip(handle: IO[bytes], n: int) -> bool:
    """Move past n bytes; False where the file ends before. Only whole files are seekable, so ask for the end first."""
    here = handle.tell()
    end = handle.seek(0, 2)
    handle.seek(min(here + n, end))
    return here + n <= end


def _scalars(event: bytes) -> Iterator[Scalar]:
    wall_time, step, summaries = 0.0, 0, []
    for field, value in _fields(event):
        if field == 1:
            wall_time = _fixed("<d", value)
        elif field == 2:
            step = _signed(value)
        elif field == 5:
            summaries.append(_bytes(value))
    for summary in summaries:
        for field, value in _fields(summary):
            if field == 1 and (pair := _tag_and_number(_bytes(value))) is not None:
                yield Scalar(pair[0], step, pair[1], wall_time)


def _tag_and_number(message: bytes) -> tuple[str, float] | None:
    """None for what is not a finite scalar: histograms, images, text."""
    tag, number, plugin = "", None, ""
    for field, value in _fields(message):
        if field == 1:
            tag = _bytes(value).decode("utf-8", "replace")
        elif field == 2:
            number = _fixed("<f", value)
        elif field == 8:
            number = _single(_bytes(value))
        elif field == 9:
            plugin = _plugin(_bytes(value))
    if number is None or not math.isfinite(number) or plugin not in ("", "scalars"):
        return None
    return tag, number


def _plugin(metadata: bytes) -> str:
    for field, value in _fields(metadata):
        if field == 1:
            names = [_bytes(inner) for number, inner in _fields(_bytes(value)) if number == 1]
            return names[0].decode("utf-8", "replace") if names else ""
    return ""


def _single(tensor: bytes) -> float | None:
    """The number of a tensor with exactly one element, however it is stored; None for anything else."""
    dtype, content, numbers = 0, b"", []
    for field, value in _fields(tensor):
        if field == 1:
            dtype = _signed(value)
        elif field == 4:
            content = _bytes(value)
        elif field in (5, 6):
            layout = "<f" if field == 5 else "<d"
            numbers += _unpack(layout, _bytes(value))  # packed, or one element: the bytes are the same
        elif field in (7, 10):
            numbers += _varints(value)
    if content and dtype in _CONTENT:
        numbers += _unpack(_CONTENT[dtype], content)
    return float(numbers[0]) if len(numbers) == 1 else None


def _varints(value: int | bytes) -> list[float]:
    if isinstance(value, int):
        return [_signed(value)]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(_signed(number))
    return list(found)


def _unpack(layout: str, data: bytes) -> list[float]:
    size = struct.calcsize(layout)
    if len(data) % size:
        raise ValueError(f"{len(data)} bytes are not a whole number of elements")
    return [float(number) for (number,) in struct.iter_unpack(layout, data)]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value): an int for a varint, bytes for the fixed and the length-delimited wire types."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        if wire == 2:
            size, at = _varint(message, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(message):
            raise ValueError("a field runs past the end of its message")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number runs past the end of its message")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ValueError("a number of more than ten bytes")


def _signed(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("a whole number is stored as bytes")
    return value - 2**64 if value >= 2**63 else value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a message is stored as a number")
    return value


def _fixed(layout: str, value: int | bytes) -> float:
    return float(struct.unpack(layout, _bytes(value))[0])


def _table() -> tuple[int, ...]:
    """The 256 remainders of CRC-32C (Castagnoli, reflected polynomial 0x82F63B78)."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_CRC = _table()


def _masked_crc(data: bytes) -> int:
    """CRC-32C, rotated right by 15 bits plus a constant, as TFRecords store it."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFF_FFFF
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFF_FFFF
