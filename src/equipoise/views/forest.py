"""A row for each thing compared, with marks and intervals along x: readable with long names and on a narrow page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.base import Estimate
from equipoise.views.plain_text import plotly_text
from equipoise.views.style import Look, Numbers1D, Trace, axes, curve_trace, told, whiskers

STEP = 0.22  # between the marks of one row, in rows


@dataclass(frozen=True, slots=True)
class Marks:
    """Estimates of one kind, with the row that each stands in."""

    name: str
    look: Look
    estimates: Sequence[Estimate]
    rows: Sequence[str]


def capped(at: Sequence[Any], low: Numbers1D, high: Numbers1D, *, colour: str, upright: bool = True) -> Trace:
    """Intervals as strokes with a cap at either end; marks, unlike lines, also keep an axis clear of what they end on."""
    symbol = "line-ew-open" if upright else "line-ns-open"
    strokes = whiskers(at, low, high, colour=colour, upright=upright)
    return strokes | {"mode": "lines+markers", "marker": {"symbol": symbol, "size": 7, "color": colour}}


def forest(kinds: Sequence[Marks]) -> tuple[dict[str, Any], list[Trace]]:
    """The y axis and the traces. Rows come in order of first sight, from the top; kinds of one row a little apart."""
    kinds = [kind for kind in kinds if kind.estimates]
    rows = list(dict.fromkeys(row for kind in kinds for row in kind.rows))
    traces: list[Trace] = []
    for number, kind in enumerate(kinds):
        shift = STEP * (number - (len(kinds) - 1) / 2)
        heights = [rows.index(row) + shift for row in kind.rows]
        bounds = [n.low for n in kind.estimates], [n.high for n in kind.estimates]
        traces.append(capped(heights, *bounds, colour=kind.look.colour, upright=False))
        leads = [f"{row}, {kind.name}" for row in kind.rows]
        hover = [told(n, lead=lead) for n, lead in zip(kind.estimates, leads, strict=True)]
        marks = curve_trace(
            [n.value for n in kind.estimates], [], name=kind.name, look=kind.look, hover=hover, mode="markers"
        )
        traces.append(marks | {"y": heights})
    names = [plotly_text(row, limit=40) for row in rows]
    y = axes("", tickvals=list(range(len(rows))), ticktext=names, range=[len(rows) - 0.5, -0.5], zeroline=False)
    return y, traces
