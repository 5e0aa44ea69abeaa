"""Arms of a study against each other on the same problems and seeds: differences with intervals around 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.text.display import safe_text
from equipoise.views.figure import Figure, Numbers
from equipoise.views.forest import Marks, forest
from equipoise.views.style import INK, axes, chart, series
from equipoise.views.words import in_points

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot


def shown(numbers: Numbers) -> list[Estimate]:
    return [n for n in numbers.get("paired", ()) if n.value is not None]


def _words(name: str) -> str:
    """`pass@64 − the other arm's`, `pass@64 − a base as right at one sample`."""
    if name.endswith("_difference"):
        return f"{name.removesuffix('_difference')}, arm against arm"
    return f"{name.split('_')[0]}, against the base cooled to the same pass@1"


def draw(estimates: Sequence[Estimate]) -> Plot:
    kinds = []
    for number, name in enumerate(dict.fromkeys(n.name for n in estimates)):
        mine = [n for n in estimates if n.name == name]
        kinds.append(Marks(_words(name), series(number), mine, [_row(n, estimates) for n in mine]))
    y, traces = forest(kinds)
    x = axes("difference (95% interval)", tickformat="+.0%", zeroline=True, zerolinewidth=2, zerolinecolor=INK)
    return chart(traces, x=x, y=y, height=120 + 56 * len(y["tickvals"]))


def _row(number: Estimate, estimates: Sequence[Estimate]) -> str:
    """An arm with the one that it is paired with."""
    pairs = {n.at["arm"]: n.at["against"] for n in estimates if n.name.endswith("_difference")}
    arm = number.at["arm"]
    return f"{arm} − {pairs[arm]}" if arm in pairs else arm


def reading(estimates: Sequence[Estimate]) -> str:
    sure = [n for n in estimates if n.low is not None and n.high is not None and (n.low > 0 or n.high < 0)]
    if not sure:
        return f"None of {len(estimates)} differences has an interval that leaves out 0."
    up = [n for n in sure if n.value is not None and n.value > 0]
    text = f"{len(sure)} of {len(estimates)} intervals leave out 0, {len(up)} of them above it"
    largest = max(sure, key=lambda n: abs(n.value or 0.0))
    which = f"{safe_text(largest.at['arm'], 40)} − {safe_text(largest.at['against'], 40)}, {_words(largest.name)}"
    return f"{text}; the largest is {in_points(largest)} ({which})."


FIGURE = Figure(
    "paired_arms",
    "Arms against each other",
    "Which differences between arms are real?",
    ("paired",),
    shown,
    draw,
    reading,
    "results.json of a study (equipoise study CONFIG)",
)
