"""Rows of texts in columns, as plain lines."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.text.display import safe_text

WIDEST = 200  # characters of a cell


def lay_out(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for the heads and one for each row."""
    table = [[safe_text(cell, WIDEST) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
