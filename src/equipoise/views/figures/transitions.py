"""Problems by their solve rate before and after, as a heat map of two classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.measures.transitions import BEFORE, CLASSES
from equipoise.views.conditions import by_condition
from equipoise.views.figure import Figure, Numbers
from equipoise.views.style import SCALE, axes, chart
from equipoise.views.words import opening, with_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot


def shown(numbers: Numbers) -> list[Estimate]:
    """One condition: a map holds no more."""
    groups = by_condition(numbers.get("transitions", ()), most=1)
    return groups[0] if groups else []


def draw(estimates: Sequence[Estimate]) -> Plot:
    cells = {(n.at["before"], n.at["after"]): n for n in estimates if n.name == "transition"}
    grid = [[cells[before, after] for before in CLASSES] for after in CLASSES]
    heat = {
        "type": "heatmap",
        "x": list(CLASSES),
        "y": list(CLASSES),
        "z": [[cell.value for cell in row] for row in grid],
        "text": [[str(cell.at["count"]) for cell in row] for row in grid],
        "texttemplate": "%{text}",
        "hovertext": [[_told(cell) for cell in row] for row in grid],
        "hoverinfo": "text",
        "colorscale": SCALE,
        "zmin": 0,
        "xgap": 2,
        "ygap": 2,
        "colorbar": {
            "title": {"text": "share of problems", "side": "top"},
            "tickformat": ".0%",
            "thickness": 10,
            "orientation": "h",  # beside the map it would take a phone's width
            "y": 1.0,
            "yanchor": "bottom",
        },
    }
    kept = {  # on it a problem's class is unchanged; below it, it fell
        "type": "scatter",
        "x": list(CLASSES),
        "y": list(CLASSES),
        "mode": "lines",
        "line": {"color": "#808080", "dash": "dot", "width": 1.5},
        "name": "unchanged",
        "hoverinfo": "skip",
    }
    x = axes(f"solve rate {_before(estimates)}", type="category")
    y = axes(f"solve rate {_after(estimates)}", type="category")
    return chart([heat, kept], x=x, y=y, height=500, margin={"l": 56, "r": 16, "t": 84, "b": 48})


def _before(estimates: Sequence[Estimate]) -> str:
    return "of the base model" if estimates[0].at["against"] == "baseline" else "in the first steps"


def _after(estimates: Sequence[Estimate]) -> str:
    return "in the run's last steps" if "step" in estimates[0].at else "of the run"


def _told(cell: Estimate) -> str:
    return (
        f"before {cell.at['before']}, after {cell.at['after']}: {with_interval(cell)} of the problems"
        f" ({cell.at['count']} of {cell.n})"
    )


def reading(estimates: Sequence[Estimate]) -> str:
    lost, won = (next(n for n in estimates if n.name.startswith(kind)) for kind in ("lost@", "won@"))
    k, before = lost.at["k"], "the base model" if lost.at["against"] == "baseline" else "the first steps"
    return (
        f"{opening(lost)}{with_interval(lost)} of {lost.n} problems are solved by {k} samples of {before} and by none of {k} "
        f"{_after(estimates)}; {with_interval(won)} the other way round."
    )


FIGURE = Figure(
    "transitions",
    "Solve rate of each problem, before and after",
    "Which problems were lost?",
    ("transitions",),
    shown,
    draw,
    reading,
    BEFORE,
)
