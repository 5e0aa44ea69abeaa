"""Thrift's compact encoding, as far as Parquet's footer and page headers use it.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

import mmap
from typing import Any

Data = bytes | mmap.mmap
Struct = dict[int, Any]  # field number → value

MAX_DEPTH = 16


def read_struct(data: Data, at: int, depth: int = 0) -> tuple[Struct, int]:
    """A struct and where it ends. `IndexError` or `ValueError` where the bytes are no struct."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    fields: Struct = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _zigzag(data, at)
        kind = head & 15
        if kind in (1, 2):  # a boolean field has its value in its type
            fields[number] = kind == 1
        else:
            fields[number], at = _read_value(data, at, kind, depth)
    return fields, at + 1


def _read_value(data: Data, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (4, 5, 6):
        return _zigzag(data, at)
    if kind == 12:
        return read_struct(data, at, depth + 1)
    if kind == 8:
        length, at = _varint(data, at)
        return data[at : at + length], at + length
    if kind == 9:
        return _read_list(data, at, depth)
    if kind in (1, 2, 3):
        return data[at], at + 1
    if kind == 7:
        return data[at : at + 8], at + 8
    raise ValueError(f"type {kind} is not used by Parquet")


def _read_list(data: Data, at: int, depth: int) -> tuple[list[Any], int]:
    head, at = data[at], at + 1
    size, kind = head >> 4, head & 15
    if size == 15:
        size, at = _varint(data, at)
    if size > len(data) - at:  # an element takes a byte at least
        raise ValueError("a list longer than the file")
    items = []
    for _ in range(size):
        item, at = _read_value(data, at, kind, depth + 1)
        items.append(item)
    return items, at


def _zigzag(data: Data, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: Data, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
