"""`--column OURS=THEIRS`: the column map of a plain file; `--where COLUMN=VALUE`: which rows of it."""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.errors import UsageError
from equipoise.specs import read_value


def parse_columns(pairs: Iterable[str] | None) -> dict[str, str] | None:
    """{"prompt_id": "puzzle_idx"} from ["prompt_id=puzzle_idx"]."""
    columns = {}
    for pair in pairs or ():
        ours, equals, theirs = pair.partition("=")
        if not (ours and equals and theirs):
            raise UsageError(f"--column takes OURS=THEIRS, for example prompt_id=puzzle_idx; found '{pair}'")
        columns[ours] = theirs
    return columns or None


def parse_where(pairs: Iterable[str] | None) -> dict[str, str | float]:
    """{"run_id": "base"} from ["run_id=base"]."""
    chosen: dict[str, str | float] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise UsageError(f"--where takes COLUMN=VALUE, for example run_id=base; found '{pair}'")
        chosen[name] = read_value(value)
    return chosen
