"""pass@1 against pass@k: every arm of a study with both intervals, and the base model's curve over temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.text.display import safe_text
from equipoise.views.figure import Figure, Numbers
from equipoise.views.forest import capped
from equipoise.views.plain_text import plotly_text
from equipoise.views.style import LOOKS, Look, Trace, axes, chart, curve_trace, series, told
from equipoise.views.words import sentence, with_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

BASE = "base"
Point = tuple[Estimate, Estimate]  # pass@1 and pass@k of one arm at one temperature


def shown(numbers: Numbers) -> list[Estimate]:
    """The base model at every temperature, every other arm at the one of the headline."""
    return [n for n in numbers.get("frontier", ()) if n.at["arm"] == BASE or n.at["headline"]]


def _points(estimates: Sequence[Estimate], arm: str) -> list[Point]:
    """In order of temperature; a point without both numbers is left out."""
    found: dict[float, dict[bool, Estimate]] = {}
    for number in estimates:
        if number.at["arm"] == arm and number.value is not None:
            found.setdefault(number.at["temperature"], {})[number.at["k"] == 1] = number
    return [(pair[True], pair[False]) for _, pair in sorted(found.items()) if len(pair) == 2]


def _arms(estimates: Sequence[Estimate]) -> list[str]:
    return list(dict.fromkeys(n.at["arm"] for n in estimates if n.at["arm"] != BASE))


def draw(estimates: Sequence[Estimate]) -> Plot:
    k = max(n.at["k"] for n in estimates)
    traces = _drawn(_points(estimates, BASE), "base, cooled and heated", LOOKS["base"], k)
    for number, arm in enumerate(_arms(estimates)):
        traces += _drawn(_points(estimates, arm), arm, series(number), k)
    x, y = (axes(f"pass@{each}, share of problems", tickformat=".0%") for each in (1, k))
    return chart(traces, x=x, y=y, height=460)


def _drawn(points: Sequence[Point], name: str, look: Look, k: int) -> list[Trace]:
    ones, many = [one for one, _ in points], [more for _, more in points]
    xs, ys = [n.value for n in ones], [n.value for n in many]
    hover = [
        f"{plotly_text(name)}, T = {one.at['temperature']:g}<br>{told(one, lead='pass@1')}<br>{told(more, lead=f'pass@{k}')}"
        for one, more in points
    ]
    mode = {"mode": "lines+markers+text" if len(points) > 1 else "markers"}
    names = [f"T = {one.at['temperature']:g}" for one in ones] if len(points) > 1 else None
    marks = curve_trace(xs, ys, name=name, look=look, hover=hover, **mode)
    marks |= {"text": names, "textposition": "top right"} if names else {}
    return [
        capped(xs, [n.low for n in many], [n.high for n in many], colour=look.colour),
        capped(ys, [n.low for n in ones], [n.high for n in ones], colour=look.colour, upright=False),
        marks,
    ]


def reading(estimates: Sequence[Estimate]) -> str:
    arms = {arm: _points(estimates, arm)[0] for arm in _arms(estimates) if _points(estimates, arm)}
    base = next((point for point in _points(estimates, BASE) if point[0].at["headline"]), None)
    k = max(n.at["k"] for n in estimates)
    words = []
    if base is not None:
        words.append(f"the base model has pass@1 {with_interval(base[0])} and pass@{k} {with_interval(base[1])}")
    if arms:
        for place, name in ((0, "pass@1"), (1, f"pass@{k}")):
            best = max(arms, key=lambda arm: arms[arm][place].value or 0.0)
            words.append(
                f"the highest {name} of {len(arms)} arms is {with_interval(arms[best][place])} ({safe_text(best, 40)})"
            )
    return sentence("; ".join(words))


FIGURE = Figure(
    "frontier",
    "Frontier of pass@1 and pass@k",
    "Which arm trades one answer against many best, and does it beat a cooled base model?",
    ("frontier",),
    shown,
    draw,
    reading,
    "results.json of a study (equipoise study CONFIG)",
)
