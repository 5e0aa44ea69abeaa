"""`--column OURS=THEIRS`: the column map of a plain file."""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.errors import UsageError


def parse_columns(pairs: Iterable[str] | None) -> dict[str, str] | None:
    """{"prompt_id": "puzzle_idx"} from ["prompt_id=puzzle_idx"]."""
    columns = {}
    for pair in pairs or ():
        ours, equals, theirs = pair.partition("=")
        if not (ours and equals and theirs):
            raise UsageError(f"--column takes OURS=THEIRS, for example prompt_id=puzzle_idx; found '{pair}'")
        columns[ours] = theirs
    return columns or None
