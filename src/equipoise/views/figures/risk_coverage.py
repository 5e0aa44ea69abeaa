"""Accuracy when only the surest rollouts are kept, for every source of confidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.measures.confidence import MISSING, SOURCES
from equipoise.views.conditions import by_condition
from equipoise.views.figure import Figure, Numbers
from equipoise.views.style import Trace, axes, chart, digits, line, series
from equipoise.views.words import in_points, opening, sentence, with_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

CURVE, GAIN = "selective_accuracy", "selective_gain"


def shown(numbers: Numbers) -> list[Estimate]:
    """One condition, all its sources."""
    found = [n for n in numbers.get("confidence", ()) if n.name in (CURVE, GAIN, "auroc")]
    groups = by_condition(found, most=1)
    return groups[0] if groups else []


def draw(estimates: Sequence[Estimate]) -> Plot:
    traces: list[Trace] = []
    for source in dict.fromkeys(n.at["source"] for n in estimates):
        curve = [n for n in estimates if n.name == CURVE and n.at["source"] == source]
        traces += line(curve, "coverage", name=source, look=series(list(SOURCES).index(source)))
    x = axes("share of the rollouts that is kept, the surest", tickformat=".0%", range=[0, 1.02])
    return chart(traces, x=x, y=axes("share of those that is right", tickformat=".0%"))


def reading(estimates: Sequence[Estimate]) -> str:
    gains = [n for n in estimates if n.name == GAIN]
    best = max(gains, key=lambda n: n.value or 0.0)
    source = best.at["source"]
    half, whole = (
        next(n for n in estimates if n.name == CURVE and n.at["source"] == source and n.at["coverage"] == share)
        for share in (best.at["coverage"], 1.0)
    )
    text = (
        f"{opening(best)}keeping the surest half by {source} takes accuracy from {with_interval(whole)} to {with_interval(half)}, "
        f"{in_points(best)}"
    )
    rank = next((n for n in estimates if n.name == "auroc" and n.at["source"] == source), None)
    text += f" (AUROC {with_interval(rank, digits)})" if rank is not None else ""
    return sentence(f"{text}, the most of {len(gains)} confidences" if len(gains) > 1 else text)


FIGURE = Figure(
    "risk_coverage",
    "Risk and coverage",
    "How much can be filtered and at what gain?",
    ("confidence",),
    shown,
    draw,
    reading,
    MISSING,
)
