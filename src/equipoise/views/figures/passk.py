"""pass@k of the run and of the base model over k, and where the curves cross."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.views.conditions import by_condition, condition_name, condition_of, is_late
from equipoise.views.figure import Figure, Numbers
from equipoise.views.style import LOOKS, Look, Trace, axes, chart, digits, line, series, upright, veil
from equipoise.views.words import in_points, opening, with_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

MOST = 2  # conditions, each with a curve and what it is compared with
_CURVE, _BASE, _GAP = (re.compile(rf"pass@\d+{end}$") for end in ("", "_of_baseline", "_vs_baseline"))


def shown(numbers: Numbers) -> list[Estimate]:
    """The run's curve, the base model's or else that of the first steps, the gap at either end, the crossing."""
    found = [number for number in numbers.get("passk", ()) if number.value is not None]
    picked: list[Estimate] = []
    for curve in by_condition((n for n in found if _CURVE.match(n.name) and is_late(n)), most=MOST):
        mine = [n for n in found if condition_of(n) == condition_of(curve[0])]
        base = [n for n in mine if _BASE.match(n.name)]
        first = [n for n in mine if _CURVE.match(n.name) and n.at.get("window") == "early"]
        gaps = sorted((n for n in mine if _GAP.match(n.name)), key=_k)
        ends = [gaps[0], gaps[-1]] if len(gaps) > 1 else gaps
        told = [] if picked else [*ends, *(n for n in mine if n.name == "crossing_k")]  # of the first condition alone
        picked += [*sorted(curve, key=_k), *sorted(base or first, key=_k), *told]
    return picked


def _k(number: Estimate) -> int:
    return int(number.at["k"])


def draw(estimates: Sequence[Estimate]) -> Plot:
    traces: list[Trace] = []
    shapes = []
    groups = by_condition(estimates)
    for number, group in enumerate(groups):
        which = f" ({condition_name(group[0])})" if len(groups) > 1 else ""
        for kind, name, role in (
            ("run", "run", "trained"),
            ("base", "base model", "base"),
            ("first", "first steps", "base"),
        ):
            curve = [n for n in group if _kind(n) == kind]
            if curve:
                traces += line(curve, "k", name=name + which, look=_look(role, number))
        for crossing in (n for n in group if n.name == "crossing_k"):
            assert crossing.value is not None
            mark = upright(crossing.value, f"crossing at k = {digits(crossing.value)}")
            level = {"textangle": 0, "textposition": "start", "xanchor": "left", "yanchor": "bottom", "padding": 6}
            shapes.append(mark | {"label": mark["label"] | level})
            if crossing.low is not None and crossing.high is not None:
                shapes.append(_span(crossing.low, crossing.high))
    ks = sorted({_k(n) for n in estimates if _kind(n) != "other"})
    x = axes("k, completions per problem (log scale)", type="log", tickvals=ks, ticktext=[str(k) for k in ks])
    return chart(traces, x=x, y=axes("pass@k, share of problems", tickformat=".0%"), shapes=shapes)


def _kind(number: Estimate) -> str:
    if _BASE.match(number.name):
        return "base"
    if not _CURVE.match(number.name):
        return "other"
    return "first" if number.at.get("window") == "early" else "run"


def _look(role: str, number: int) -> Look:
    """The roles' colours for the first condition, other colours with the same dash for the next."""
    look = LOOKS[role]
    return look if number == 0 else Look(series(number + 2).colour, look.dash, look.symbol)


def _span(low: float, high: float) -> dict[str, object]:
    """The interval of the crossing, from bottom to top."""
    return {
        "type": "rect",
        "x0": low,
        "x1": high,
        "xref": "x",
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "fillcolor": veil(LOOKS["truth"].colour, 0.15),
        "line": {"width": 0},
        "layer": "below",
    }


def reading(estimates: Sequence[Estimate]) -> str:
    first = by_condition(estimates)[0]
    run, gaps = [n for n in first if _kind(n) == "run"], [n for n in first if _GAP.match(n.name)]
    low, high = run[0], run[-1]
    text = f"pass@{_k(low)} is {with_interval(low)}"
    text += f" and pass@{_k(high)} {with_interval(high)}" if high is not low else ""
    early = {_k(n): n for n in first if _kind(n) == "first"}
    if gaps:
        text += "; against the base model " + " and ".join(f"{in_points(gap)} at k = {_k(gap)}" for gap in gaps)
        crossing = next((n for n in first if n.name == "crossing_k"), None)
        if crossing is not None:
            text += _below(crossing, gaps[0])
    elif high is not low and _k(low) in early and _k(high) in early:
        text += f"; in the first steps they were {with_interval(early[_k(low)])} and {with_interval(early[_k(high)])}"
    return f"{opening(low)}{text}."


def _below(crossing: Estimate, first: Estimate) -> str:
    if crossing.value == _k(first):
        return ", below it at every k"
    sharper = ": sharpened rather than extended" if first.value is not None and first.value > 0 else ""
    return f", below it from k = {with_interval(crossing, digits)} on{sharper}"


FIGURE = Figure(
    "passk",
    "pass@k",
    "Sharpened or extended?",
    ("passk",),
    shown,
    draw,
    reading,
    "verdicts on several rollouts per problem (columns correct, prompt_id)",
)
