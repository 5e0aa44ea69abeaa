"""Accuracy, spread of the answers and tokens over the thinking budget or, where that does not vary, the temperature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.views.conditions import CONDITIONS, condition_name, is_late
from equipoise.views.figure import Figure, Numbers
from equipoise.views.style import Trace, axes, digits, line, series, strips
from equipoise.views.words import in_points, with_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

STRIPS = {
    "accuracy": "accuracy, one sample",
    "answer_entropy": "answer entropy (nats)",
    "length": "tokens per sample",
}
MOST = 6  # lines
_SPEAK = ("best_budget", "overthinking_loss", "disagreement_rise")


def shown(numbers: Numbers) -> list[Estimate]:
    """Over budgets: on the problems that were tried at all of them. Over temperatures: each on its own problems."""
    budget = numbers.get("budget", ())
    by_budget = [n for n in budget if n.name in STRIPS and n.value is not None]
    if len({n.at["budget"] for n in by_budget}) > 1:
        lengths = [n for n in numbers.get("health", ()) if n.name == "length" and is_late(n) and _has(n, "budget")]
        spoken = [n for n in budget if n.name in _SPEAK and n.value is not None]
        return [*_lines([*by_budget, *lengths], "budget"), *spoken]
    found = [n for n in numbers.get("passk", ()) if n.name == "pass@1"]
    found += [n for n in numbers.get("diversity", ()) if n.name == "answer_entropy" and n.at.get("problems") == "all"]
    found += [n for n in numbers.get("health", ()) if n.name == "length"]
    found = [n for n in found if is_late(n) and n.value is not None and _has(n, "temperature")]
    return _lines(found, "temperature") if len({n.at["temperature"] for n in found}) > 1 else []


def _has(number: Estimate, key: str) -> bool:
    return number.at.get(key) is not None


def _lines(estimates: Sequence[Estimate], x: str) -> list[Estimate]:
    """At most `MOST` lines of each number, in order of x."""
    label = _labels(estimates, x)
    names = list(dict.fromkeys(map(label, estimates)))[:MOST]
    kept = [n for n in estimates if label(n) in names]
    return sorted(kept, key=lambda n: (names.index(label(n)), float(n.at[x])))


def _labels(estimates: Sequence[Estimate], x: str) -> Callable[[Estimate], str]:
    """Lines are called by what tells the accuracies apart besides x: a condition that every rollout of the sweep shares is no name."""
    first = [n for n in estimates if _strip(n) == "accuracy"] or estimates
    shared = [name for name in CONDITIONS if len({n.at.get(name) for n in first}) == 1]
    return lambda number: condition_name(number, without=[x, *shared])


def _axis(estimates: Sequence[Estimate]) -> str:
    return "budget" if any(_has(n, "budget") and n.name in STRIPS for n in estimates) else "temperature"


def draw(estimates: Sequence[Estimate]) -> Plot:
    x = _axis(estimates)
    drawn = [n for n in estimates if n.name in STRIPS or n.name == "pass@1"]
    label_of = _labels(drawn, x)
    labels = list(dict.fromkeys(map(label_of, drawn)))
    parts: list[tuple[dict[str, object], list[Trace]]] = []
    told: set[str] = set()
    for strip, title in STRIPS.items():
        traces: list[Trace] = []
        for number, label in enumerate(labels):
            mine = [n for n in drawn if _strip(n) == strip and label_of(n) == label]
            if mine:
                unit = {"answer_entropy": "nats", "length": "tokens"}.get(strip, "")
                traces += line(mine, x, name=label, look=series(number), unit=unit, showlegend=label not in told)
                told.add(label)
        if traces:
            parts.append((axes(title, tickformat=".0%" if strip == "accuracy" else "", rangemode="tozero"), traces))
    title = "thinking budget (tokens)" if x == "budget" else "sampling temperature"
    places = sorted({float(n.at[x]) for n in drawn})
    wide = x == "budget" and places[0] > 0 and places[-1] > 20 * places[0]
    log = {"type": "log", "tickvals": places, "ticktext": [f"{p:g}" for p in places]} if wide else {}
    return strips(parts, x=axes(title + (", log scale" if wide else ""), **log))


def _strip(number: Estimate) -> str:
    return "accuracy" if number.name == "pass@1" else number.name


def reading(estimates: Sequence[Estimate]) -> str:
    best, loss, rise = (next((n for n in estimates if n.name == name), None) for name in _SPEAK)
    accuracy = [n for n in estimates if _strip(n) == "accuracy"]
    x = _axis(estimates)
    if best is not None and loss is not None:
        text = f"Accuracy is highest at a budget of {with_interval(best, digits)} tokens"
        if best.value == loss.at["budget"]:
            return f"{text}, the largest tried."
        text += f"; the largest changes it by {in_points(loss)}"
        return text + (f" and the chance that two samples disagree by {in_points(rise)}." if rise is not None else ".")
    label = _labels(estimates, x)
    one = [n for n in accuracy if label(n) == label(accuracy[0])]  # of several lines the first
    top, first, last = max(one, key=lambda n: n.value or 0.0), one[0], one[-1]
    ends = " and ".join(f"{with_interval(n)} at {x} {n.at[x]:g}" for n in (first, last))
    return f"Accuracy is {ends}; it is highest, {with_interval(top)}, at {x} {top.at[x]:g}."


FIGURE = Figure(
    "sweep",
    "Inference sweep",
    "Is extra sampling buying accuracy or only variance?",
    ("budget", "passk", "diversity", "health"),
    shown,
    draw,
    reading,
    "rollouts of the same problems at several thinking budgets or temperatures (columns budget, temperature)",
)
