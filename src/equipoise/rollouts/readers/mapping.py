"""The caller's map from the record's names to a source's, and what becomes of a name that the source does not have.

In some rows only: null there, with a warning. In no row: an error, since a wrong name would read as "not measured". A map that was
written for another run, of which this one is the baseline, holds where it fits; elsewhere the source's own column stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError, unknown_name
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.columns import BY_NAME
from equipoise.rollouts.readers.aliases import listed
from equipoise.rollouts.rows import Warn


class ColumnMap(dict[str, str]):
    """{record's name: source's name}, and which of them rows were found to have, in any reading so far."""

    def __init__(self, columns: Mapping[str, str], *, for_another: bool = False) -> None:
        super().__init__(columns)
        self.for_another = for_another
        self.met: set[str] = set()
        self.lacked: set[str] = set()
        self.keys_of_a_row: list[str] = []

    def check(
        self, path: Path, batches: Iterable[Rollouts], asked: Sequence[str] | None, warn: Warn
    ) -> Iterator[Rollouts]:
        """The batches, and after the last an error for a name that no row had."""
        own = set()
        for batch in batches:
            own |= {name for name in self if name in batch.columns}  # a column that is null throughout is not there
            yield batch
        for ours, theirs in self.items():
            if ours not in self.lacked or (self.for_another and asked is not None and ours not in asked):
                continue
            if self.for_another and (ours in self.met or ours in own):
                few = "is not in every row" if ours in self.met else "is in no row"
                warn("own-column", f"'{theirs}', named for {ours}, {few}: its own {ours} stands there")
            if ours in self.met or (self.for_another and ours in own):
                continue
            neither = (
                f" and it has no {ours} of its own (convert it alone, if it can do without)" if self.for_another else ""
            )
            raise UsageError(
                f"no row of {path} has '{theirs}' to read as {ours}{neither}; a row has {listed(self.keys_of_a_row)}"
            )


def check_map(columns: Mapping[str, str] | None) -> ColumnMap:
    """The caller's map, checked against the record."""
    for name in columns or {}:
        if name not in BY_NAME:
            raise unknown_name("column", name, BY_NAME)
    return ColumnMap(columns or {}, for_another=isinstance(columns, ColumnMap) and columns.for_another)


def mapped(source: Mapping[str, Any], columns: ColumnMap, warn: Warn) -> dict[str, Any]:
    """The cells that the caller's map names. A dot goes into nested objects where no key has that whole name."""
    if not columns.keys_of_a_row:  # scores first: they are what is named most
        columns.keys_of_a_row = sorted(source, key=lambda name: not isinstance(source[name], bool | int | float))
    cells: dict[str, Any] = {}
    for ours, theirs in columns.items():
        found = _reach(source, theirs)
        if found is not _MISSING:
            columns.met.add(ours)
            cells[ours] = found
            continue
        columns.lacked.add(ours)
        if not columns.for_another:
            warn("missing-column", f"'{theirs}', named for {ours}, is not in every row: it is null there")
            cells[ours] = None
            if ours == "correct":
                cells.setdefault("outcome", None)  # or the source's own word would stand for the verdict that was named
    return cells


_MISSING = object()


def _reach(source: Mapping[str, Any], name: str) -> Any:
    if name in source:
        return source[name]
    head, _, rest = name.partition(".")
    inner = source.get(head)
    return _reach(inner, rest) if rest and isinstance(inner, Mapping) else _MISSING
