"""`VocabFile`: vocab.json of a run folder while it grows. The file is always whole, and only what is new is turned into JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from equipoise.errors import UsageError
from equipoise.files import atomic_write
from equipoise.rollouts.folder import read_vocab

PAGE = 64  # token ids whose lines are joined anew when one of them is added


class VocabFile:
    """Several processes may write one file: it is read again when another has written it, and what both know stays."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "vocab.json"
        self._texts: dict[int, str] = {}
        self._lines: dict[int, dict[int, str]] = {}  # page → token → its line
        self._pages: dict[int, bytes] = {}
        self._stamp: tuple[int, int, int] | None = None  # of the file as it was last read or written here

    def add(self, texts: Mapping[int, str]) -> None:
        """Write the strings of these token ids, unless all of them are in the file."""
        n_there: int | None = len(self._texts)
        if self._stamp is None or self._stamp_now() != self._stamp:
            stamp, found = self._stamp_now(), read_vocab(self.path.parent)
            self._take(found or {})
            n_there, self._stamp = None if found is None else len(found), stamp
        self._take(texts)
        if len(self._texts) == n_there:
            return
        self._stamp = None  # should writing fail, the file is read again
        with atomic_write(self.path) as handle:
            handle.write(self._whole())
            handle.flush()
            stamp = _stamp(os.fstat(handle.fileno()))  # of this file, whoever replaces it next
        self._stamp = stamp

    def _take(self, texts: Mapping[int, str]) -> None:
        known = self._texts
        # A lone surrogate cannot be stored as UTF-8.
        given = {token: text.encode("utf-8", "replace").decode("utf-8") for token, text in texts.items()}
        for token, text in given.items():
            if known.get(token, text) != text:
                raise UsageError(
                    f"token {token} is {known[token]!r} in {self.path} and {text!r} here: two tokenizers in one run"
                )
        fresh = {token: text for token, text in given.items() if token not in known}
        known |= fresh
        for token, text in fresh.items():
            line = f' "{token}": {json.dumps(text, ensure_ascii=False)}'
            self._lines.setdefault(token // PAGE, {})[token] = line
        for page in {token // PAGE for token in fresh}:
            lines = self._lines[page]
            self._pages[page] = ",\n".join([lines[token] for token in sorted(lines)]).encode()

    def _whole(self) -> bytes:
        if not self._pages:
            return b"{}\n"
        return b"{\n" + b",\n".join([self._pages[page] for page in sorted(self._pages)]) + b"\n}\n"

    def _stamp_now(self) -> tuple[int, int, int] | None:
        try:
            return _stamp(self.path.stat())
        except FileNotFoundError:
            return None


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_size
