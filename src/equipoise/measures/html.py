"""Small HTML tables for notebooks. Every text is escaped: names and paths come from files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from equipoise.base import Estimate


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> str:
    """A table of plain texts, with a line above it."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"{html_line(title) if title else ''}<table><tr>{head}</tr>{body}</table>"


def html_line(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def number_cell(number: Estimate | None, *, signed: bool = False) -> str:
    """`0.412 [0.380, 0.444]`; a dash where it was not measured."""
    if number is None or number.value is None:
        return "–"
    form = f"{'+' if signed else ''}.{1 if abs(number.value) >= 10 else 3}f"
    if number.low is None or number.high is None:
        return format(number.value, form)
    return f"{number.value:{form}} [{number.low:{form}}, {number.high:{form}}]"
