"""Rows of texts in columns, as plain lines, and how wide a terminal lets them be."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from itertools import zip_longest
from textwrap import wrap

from equipoise.text.display import safe_text

WIDEST = 200  # characters of a cell
NARROWEST = 20  # a first column is folded no further: a name must stay readable
_GAP = "  "
_PIECES = re.compile(r"[^ ,:]+[ ,:]?|[ ,:]")  # a spec may be folded after a comma, a colon or a space


def room() -> int | None:
    """Columns of the terminal. None: stdout is piped, and a line is as long as it must be."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fold(line: str, width: int | None, *, indent: str = _GAP) -> list[str]:
    """A sentence in lines of at most `width`, those after the first one indented."""
    if width is None:
        return [line]
    return wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def lay_out(heads: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> list[str]:
    """A line for the heads and one for each row.

    Where that is wider than `width`, the cells of the first column are folded, and then columns are left out from the right,
    where the least telling ones stand. A last line names those.
    """
    table = [[safe_text(cell, WIDEST) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    shown = len(widths)
    if width is not None:
        narrowest = min(widths[0], NARROWEST)
        while shown > 2 and narrowest + _beside(widths[:shown]) > width:
            shown -= 1
        widths[0] = max(narrowest, min(widths[0], width - _beside(widths[:shown])))
    lines = [line for row in table for line in _row(row[:shown], widths)]
    hidden = ", ".join(table[0][shown:])
    return [*lines, f"no room for: {hidden} (--json has them)"] if hidden else lines


def _beside(widths: Sequence[int]) -> int:
    """Characters of the columns after the first, with the gaps before them."""
    return sum(len(_GAP) + width for width in widths[1:])


def _row(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    columns = [_folded(row[0], widths[0]), *([cell] for cell in row[1:])]
    return [
        _GAP.join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)).rstrip()
        for cells in zip_longest(*columns, fillvalue="")
    ]


def _folded(text: str, width: int) -> list[str]:
    """`text` in parts of at most `width`, broken where a name may be."""
    parts = [""]
    for piece in _PIECES.findall(text):
        if parts[-1] and len(parts[-1] + piece.rstrip()) > width:
            parts.append("")
        parts[-1] += piece
    return [part[at : at + width].rstrip() for part in parts for at in range(0, max(len(part.rstrip()), 1), width)]
