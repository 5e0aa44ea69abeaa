"""Accuracy against confidence for every source of confidence, with the number of rollouts behind each point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.measures.confidence import MISSING, SOURCES
from equipoise.views.conditions import by_condition
from equipoise.views.figure import Figure, Numbers
from equipoise.views.panels import panels
from equipoise.views.style import LOOKS, Trace, axes, curve_trace, digits, points, series
from equipoise.views.words import opening, sentence, with_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

# A mean entropy says which rollouts are surer than others, and claims no share of right ones.
CLAIM = tuple(source for source in SOURCES if source != "low entropy")


def shown(numbers: Numbers) -> list[Estimate]:
    """One condition, all its sources."""
    found = [
        n
        for n in numbers.get("confidence", ())
        if n.name in ("reliability", "brier", "ece") and n.at.get("source") in CLAIM
    ]
    groups = by_condition(found, most=1)
    return groups[0] if groups else []


def _of(estimates: Sequence[Estimate], source: str, name: str) -> list[Estimate]:
    return [n for n in estimates if n.name == name and n.at["source"] == source]


def _sources(estimates: Sequence[Estimate]) -> list[str]:
    return list(dict.fromkeys(n.at["source"] for n in estimates))


def draw(estimates: Sequence[Estimate]) -> Plot:
    perfect = curve_trace([0, 1], [0, 1], name="as right as sure", look=LOOKS["truth"], mode="lines", hoverinfo="skip")
    above: list[Trace] = [perfect]
    below: list[Trace] = []
    for source in _sources(estimates):
        look = series(list(SOURCES).index(source))
        bins = _of(estimates, source, "reliability")
        above += points(bins, "confidence", name=_legend(estimates, source), look=look, mode="lines+markers")
        bar = {
            "type": "bar",
            "x": [(n.at["bin"][0] + n.at["bin"][1]) / 2 for n in bins],
            "y": [n.at["count"] for n in bins],
            "name": source,
            "marker": {"color": look.colour},
            "showlegend": False,
            "hovertext": [
                f"{source}, confidence {n.at['bin'][0]:g}–{n.at['bin'][1]:g}: {n.at['count']:,} rollouts" for n in bins
            ],
            "hoverinfo": "text",
        }
        below.append(bar)
    share = {"tickformat": ".0%", "range": [-0.03, 1.03]}
    parts = [
        (axes("confidence", **share), axes("share that is right", **share), above),
        (axes("confidence", **share), axes("rollouts (log scale)", type="log"), below),
    ]
    return panels(parts, tall=[340, 140], barmode="group")


def _legend(estimates: Sequence[Estimate], source: str) -> str:
    ece, brier = _of(estimates, source, "ece"), _of(estimates, source, "brier")
    return f"{source}: ECE {digits(ece[0].value)}, Brier {digits(brier[0].value)}"


def reading(estimates: Sequence[Estimate]) -> str:
    told = []
    for source in _sources(estimates):
        (ece,), (brier,) = _of(estimates, source, "ece"), _of(estimates, source, "brier")
        told.append(f"{source} is off by {digits(ece.value)} (ECE), Brier {with_interval(brier, digits)}")
    best = min((n for n in estimates if n.name == "ece"), key=lambda n: n.value or 0.0)
    if len(told) > 1:
        told.append(f"best calibrated: {best.at['source']}")
    return sentence(opening(best) + "; ".join(told))


FIGURE = Figure(
    "calibration",
    "Calibration of every confidence",
    "May a filter trust this confidence?",
    ("confidence",),
    shown,
    draw,
    reading,
    MISSING,
)
