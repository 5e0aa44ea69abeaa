"""Several plots in one figure, one above the other, each with both axes of its own: readable at the width of a phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from equipoise.views.style import Trace, chart

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

Axis = Mapping[str, Any]  # what `style.axes` gives
TALL = 300


def panels(parts: Sequence[tuple[Axis, Axis, Sequence[Trace]]], *, tall: Sequence[int] = (), **layout: Any) -> Plot:
    """(x axis, y axis, traces) of each plot, the first on top; their axes are x and y, x2 and y2, … `tall`: heights in pixels."""
    heights = [*tall] or [TALL] * len(parts)
    gap = 80  # room for an x axis with its title
    whole = sum(heights) + gap * (len(parts) - 1)
    traces: list[Trace] = []
    sides: dict[str, Any] = {}
    top = whole
    for number, ((x, y, drawn), height) in enumerate(zip(parts, heights, strict=True)):
        key = "" if number == 0 else str(number + 1)
        sides[f"xaxis{key}"] = dict(x) | {"anchor": f"y{key}", "title": {**x["title"], "standoff": 6}}
        sides[f"yaxis{key}"] = dict(y) | {
            "anchor": f"x{key}",
            "domain": [max(0.0, (top - height) / whole), top / whole],
        }
        traces += [trace | {"xaxis": f"x{key}", "yaxis": f"y{key}"} for trace in drawn]
        top -= height + gap
    return chart(traces, x=sides.pop("xaxis"), y=sides.pop("yaxis"), height=whole + 84, **{**sides, **layout})
