"""Where a key of a TOML text stands: the line of every key, table and list entry, and what two keys clash over."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.config_text import Key, dotted

TOKEN = re.compile(
    r'''(?P<text>"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')|\#[^\n]*'''
    r"|(?P<newline>\n)|(?P<mark>[\[\]{}=,.])|(?P<bare>[^\s\[\]{}=,.\#\"']+)",
    re.S,
)
AFTER_FILE, _LAST = 1e9, 2e9  # the order in which problems are told: by line, by override, the rest


def read_key(text: str) -> Key:
    """`learning."l r"` as TOML reads it."""
    found: Any = tomllib.loads(f"{text} = 0")
    key: list[str] = []
    while found:
        ((part, found),) = found.items()
        key.append(part)
    return tuple(key)


class Scan:
    """Line of every key, table and list entry of a TOML text that `tomllib` has read, or has read up to its last key."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Key, int] = {}
        self._last: Key = ()
        self._clash: Key = ()
        self._entries: dict[Key, int] = {}  # of [[tables]]
        self._tokens: list[tuple[str, int]] = []
        self._at = 0
        line = 1
        for token in TOKEN.finditer(text):
            if token.lastgroup:
                self._tokens.append((token[0], line))
            line += token[0].count("\n")
        table: Key = ()
        while self._at < len(self._tokens):
            word, line = self._tokens[self._at]
            if word == "[":
                table = self._header(line)
            elif word in ("\n", "]"):
                self._at += 1
            else:
                self._pair(table)

    def clash(self) -> str:
        """What the last key clashes with."""
        name, other = dotted(self._last), dotted(self._clash)
        line = self.lines.get(self._clash)
        if self._clash == self._last:
            return f"{name} is set a second time, first in line {line}: keep one"
        return f"{name} cannot be set beside {other}, which has its whole value in line {line}: keep one"

    def _peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _header(self, line: int) -> Key:
        many = self._tokens[self._at : self._at + 2][-1][0] == "["
        self._at += 2 if many else 1
        table: Key = ()
        *outer, name = self._dotted_key() or ("",)
        for part in outer:
            table = (*table, part)
            self.lines.setdefault(table, line)
            table = (*table, self._entries[table]) if table in self._entries else table
        table = (*table, name)
        if many:
            self.lines.setdefault(table, line)
            self._entries[table] = self._entries.get(table, -1) + 1
            table = (*table, self._entries[table])
        self._record(table, line)
        while self._peek() == "]":
            self._at += 1
        return table

    def _pair(self, table: Key) -> None:
        line = self._tokens[self._at][1]
        key = (*table, *self._dotted_key())
        self._record(key, line)
        for size in range(len(table) + 1, len(key)):
            self.lines.setdefault(key[:size], line)
        self._at += 1  # the "=", or whatever else stands here: this always goes on
        self._value(key)

    def _dotted_key(self) -> Key:
        parts = []
        while self._peek() not in ("", "=", "]", "\n", ",", "{", "}", "["):
            if self._peek() != ".":
                parts.append(self._peek())
            self._at += 1
        return read_key(".".join(parts)) if parts else ()

    def _value(self, key: Key) -> None:
        opened = self._peek()
        if opened not in ("[", "{"):
            while self._peek() not in ("", "\n", ",", "]", "}"):
                self._at += 1
            return
        self._at += 1
        entry = 0
        while self._peek() not in ("", "]", "}"):
            if self._peek() in ("\n", ","):
                self._at += 1
            elif opened == "{":
                self._pair(key)
            else:
                self._record((*key, entry), self._tokens[self._at][1])
                self._value((*key, entry))
                entry += 1
        self._at += 1

    def _record(self, key: Key, line: int) -> None:
        self._last = key
        sizes = range(len(key), 0, -1)
        self._clash = next((key[:size] for size in sizes if key[:size] in self.lines), key)
        self.lines.setdefault(key, line)


class Places:
    """Where a key got its value: an override, a line of the file, or neither."""

    def __init__(self, path: Path | None, lines: Mapping[Key, int], given: Mapping[Key, int]) -> None:
        self.path, self.lines, self.given = path, lines, given

    def find(self, key: Key) -> tuple[float, str]:
        prefixes = [key[:size] for size in range(len(key), 0, -1)]
        for prefix in prefixes:
            if prefix in self.given:
                return AFTER_FILE + self.given[prefix], "override: "
        for prefix in prefixes:
            if prefix in self.lines:
                return self.lines[prefix], f"{self.path}:{self.lines[prefix]}: "
        under = [number for other, number in self.given.items() if other[: len(key)] == key and key]
        if under:
            return AFTER_FILE + min(under), "override: "
        return _LAST, f"{self.path}: " if self.path else ""
