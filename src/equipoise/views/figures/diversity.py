"""Distinct answers per problem, by split and by the settings of inference; and over training, against as many base samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.views.conditions import by_condition, condition_name, condition_of, is_late
from equipoise.views.figure import Figure, Numbers
from equipoise.views.forest import Marks, forest
from equipoise.views.panels import panels
from equipoise.views.style import LOOKS, Look, Trace, axes, digits, line
from equipoise.views.words import sentence, signed_percent, with_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

MOST = 12  # conditions
_DISTINCT = re.compile(r"distinct@\d+$")
KINDS = {
    ("all", False): ("all problems", Look(LOOKS["trained"].colour, "solid", "circle")),
    ("all", True): ("all problems, first steps", Look(LOOKS["trained"].colour, "dash", "circle-open")),
    ("unsolved", False): ("unsolved problems", Look(LOOKS["base"].colour, "solid", "square")),
    ("unsolved", True): ("unsolved problems, first steps", Look(LOOKS["base"].colour, "dash", "square-open")),
}


def shown(numbers: Numbers) -> list[Estimate]:
    """Distinct answers at the largest k that every condition has, then the answers that a run gathered over its visits."""
    found = [
        n
        for n in numbers.get("diversity", ())
        if _DISTINCT.match(n.name) and n.value is not None and n.at.get("problems") in ("all", "unsolved")
    ]
    late = by_condition((n for n in found if is_late(n) and n.at["problems"] == "all"), most=MOST)
    ks = [{n.at["k"] for n in group} for group in late]
    common = set.intersection(*ks) if ks else set()
    k = max(common, default=None)
    picked = [
        n
        for group in late
        for n in found
        if n.at["k"] == k and condition_of(n) == condition_of(group[0]) and "against" not in n.at
    ]
    gathered = [n for n in numbers.get("transfer", ()) if n.name == "ever_distinct" and n.at["problems"] == "all"]
    for group in by_condition(gathered, most=1):
        gaps = [
            n for n in numbers["transfer"] if n.name in ("transfer_gap", "transfer_gap_all") and n.value is not None
        ]
        picked += [*group, *(n for n in gaps if condition_of(n) == condition_of(group[0]))]
    return picked


def draw(estimates: Sequence[Estimate]) -> Plot:
    distinct = [n for n in estimates if _DISTINCT.match(n.name)]
    parts = []
    tall = []
    if distinct:
        k = distinct[0].at["k"]
        x = axes(f"distinct answers in {k}", rangemode="tozero")
        y, traces = forest([_marks(kind, [n for n in distinct if _kind(n) == kind]) for kind in KINDS])
        parts.append((x, y, traces))
        tall.append(90 + 50 * len(y["tickvals"]))
    gathered = [n for n in estimates if n.name == "ever_distinct"]
    if gathered:
        curves: list[Trace] = []
        for arm, name, role in (
            ("run", "run, over its visits", "trained"),
            ("baseline", "as many base samples", "base"),
        ):
            curves += line([n for n in gathered if n.at["arm"] == arm], "k", name=name, look=LOOKS[role])
        ks = sorted({n.at["k"] for n in gathered})
        x = axes("rollouts of a problem (log scale)", type="log", tickvals=ks, ticktext=[str(k) for k in ks])
        parts.append((x, axes("distinct answers so far", rangemode="tozero"), curves))
        tall.append(260)
    return panels(parts, tall=tall)


def _kind(number: Estimate) -> tuple[str, bool]:
    return number.at["problems"], number.at.get("window") == "early"


def _marks(kind: tuple[str, bool], estimates: Sequence[Estimate]) -> Marks:
    name, look = KINDS[kind]
    return Marks(name, look, estimates, [condition_name(n) for n in estimates])


def reading(estimates: Sequence[Estimate]) -> str:
    words = []
    groups = by_condition(n for n in estimates if _DISTINCT.match(n.name) and n.at["problems"] == "all" and is_late(n))
    if groups:
        numbers = [group[0] for group in groups]
        k = numbers[0].at["k"]
        least, most = min(numbers, key=_value), max(numbers, key=_value)
        words.append(f"{k} samples hold {with_interval(most, digits)} distinct answers ({condition_name(most)})")
        if least is not most:
            words[-1] += f" and as few as {with_interval(least, digits)} ({condition_name(least)})"
    gap = next((n for n in estimates if n.name == "transfer_gap"), None)
    gap = gap or next((n for n in estimates if n.name == "transfer_gap_all"), None)
    if gap is not None:
        which = "the problems that neither solved" if gap.name == "transfer_gap" else "all problems"
        words.append(
            f"over training the run's differ in number by {with_interval(gap, signed_percent)} from those of as many base samples, on {which}"
        )
    return sentence("; ".join(words))


def _value(number: Estimate) -> float:
    assert number.value is not None
    return number.value


FIGURE = Figure(
    "diversity",
    "Distinct answers and their transfer",
    "Does training-time diversity survive at inference?",
    ("diversity", "transfer"),
    shown,
    draw,
    reading,
    "answers of several rollouts per problem (columns answer, prompt_id)",
)
