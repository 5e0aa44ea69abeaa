"""Mean token entropy by step and place in the completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from equipoise.base import Estimate
from equipoise.views.figure import Figure, Numbers
from equipoise.views.pick import arm_note, main_arm, pick
from equipoise.views.style import SCALE, axes, chart, digits, digits_of, told

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

TENTHS = [f"{10 * d}–{10 * d + 10} %" for d in range(10)]
MOST_TEXTS = 12  # rows up to which each cell has its number written in it


def shown(numbers: Numbers) -> list[Estimate]:
    return main_arm(pick(numbers, "positions", "entropy_at_position"))


def draw(estimates: Sequence[Estimate]) -> Plot:
    rows = _rows(estimates)
    cells = [[row.get(d) for d in range(10)] for row in rows.values()]
    names = [f"step {name}" if name != "all" else "all rollouts" for name in rows]
    heat: dict[str, Any] = {
        "type": "heatmap",
        "x": TENTHS,
        "y": list(rows),
        "z": [[None if cell is None else cell.value for cell in row] for row in cells],
        "colorscale": SCALE,
        "zmin": 0,
        "colorbar": {"title": {"text": "nats"}, "thickness": 12, "outlinewidth": 0},
        "hovertext": [
            ["" if cell is None else told(cell, unit="nats", lead=f"{name}, {TENTHS[d]}") for d, cell in enumerate(row)]
            for name, row in zip(names, cells, strict=True)
        ],
        "hoverinfo": "text",
        "xgap": 1,
        "ygap": 1,
    }
    if len(rows) <= MOST_TEXTS:
        heat["text"] = [["" if cell is None else digits(cell.value) for cell in row] for row in cells]
        heat["texttemplate"] = "%{text}"
    return chart(
        [heat],
        x=axes(
            "place in the completion (%)",
            type="category",
            showgrid=False,
            ticktext=[name[:-2] for name in TENTHS],
            tickvals=TENTHS,
        ),
        y=axes("step", type="category", showgrid=False),
        height=max(300, 120 + (22 if len(rows) <= MOST_TEXTS else 14) * len(rows)),
    )


def _rows(estimates: Sequence[Estimate]) -> dict[str, dict[int, Estimate]]:
    """By step, in the order given, and by tenth."""
    rows: dict[str, dict[int, Estimate]] = {}
    for number in estimates:
        step = digits_of(number.at["step"]) if "step" in number.at else "all"
        rows.setdefault(step, {})[number.at["position"]] = number
    return rows


def reading(estimates: Sequence[Estimate]) -> str:
    rows = list(_rows(estimates).items())
    (first, start), (last, end) = rows[0], rows[-1]
    if len(rows) == 1:
        top = max(start.values(), key=_value)
        return f"Entropy is highest at {TENTHS[top.at['position']]} of the completion: {told(top, unit='nats')} problems{arm_note(estimates)}."
    both = sorted(set(start) & set(end), key=lambda d: _value(end[d]) - _value(start[d]))
    if not both:
        return f"Steps {first} and {last} have no place in common."
    down, up = both[0], both[-1]
    verb = "fell most" if _value(end[down]) < _value(start[down]) else "rose least"
    said = f"From step {first} to {last} entropy {verb} at {_moved(start[down], end[down])}"
    if up != down:
        verb = "rose most" if _value(end[up]) > _value(start[up]) else "fell least"
        said += f", and {verb} at {_moved(start[up], end[up])}"
    return f"{said}{arm_note(estimates)}."


def _moved(start: Estimate, end: Estimate) -> str:
    return f"{TENTHS[start.at['position']]} of the completion, from {digits(start.value)} to {digits(end.value)} nats"


def _value(number: Estimate) -> float:
    assert number.value is not None
    return number.value


FIGURE = Figure(
    name="positions",
    title="Entropy by step and place in the answer",
    question="Where in the answer did it collapse?",
    needs=("positions",),
    shown=shown,
    draw=draw,
    reading=reading,
    supply="token entropies (column entropies; a capture in the trainer writes them)",
)
