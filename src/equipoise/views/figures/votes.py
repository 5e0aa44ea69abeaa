"""How often the top answer is right by its share of the votes, and how answers spread by difficulty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.measures.transitions import CLASSES
from equipoise.views.conditions import by_condition, condition_name
from equipoise.views.figure import Figure, Numbers
from equipoise.views.panels import panels
from equipoise.views.style import LOOKS, Trace, axes, curve_trace, percent, points, series, told
from equipoise.views.words import in_points, opening, sentence, with_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

MOST = 3  # conditions
TELLING = 10  # problems of a class from which the sentence tells it
BY_SHARE, BY_RATE = "vote_accuracy_by_share", "answer_entropy_by_solve_rate"


def shown(numbers: Numbers) -> list[Estimate]:
    groups = by_condition(numbers.get("votes", ()), most=MOST)
    # One answer a problem has an entropy, but holds no vote.
    voted = [group for group in groups if any(n.name == "vote_accuracy" and n.value is not None for n in group)]
    return [number for group in voted for number in group]


def draw(estimates: Sequence[Estimate]) -> Plot:
    groups = by_condition(estimates)
    above: list[Trace] = [_equal()]
    below: list[Trace] = []
    for number, group in enumerate(groups):
        name = condition_name(group[0])
        by_share, by_rate = ([n for n in group if n.name == each] for each in (BY_SHARE, BY_RATE))
        if by_share:
            above += points(by_share, "mean_share", name=name, look=series(number), mode="lines+markers")
        if by_rate:
            hover = [told(n, unit="nats", lead=f"{name}, solve rate {n.at['solve_rate']}") for n in by_rate]
            rates = [n.at["solve_rate"] for n in by_rate]
            bar = {"type": "bar", "marker": {"color": series(number).colour}, "showlegend": not by_share}
            curve = curve_trace(rates, [n.value for n in by_rate], name=name, look=series(number), hover=hover)
            below.append({key: value for key, value in curve.items() if key not in ("mode", "line")} | bar)
    share = {"tickformat": ".0%", "range": [-0.03, 1.03]}
    parts = [
        (axes("share of the votes for the top answer", **share), axes("top answer is right", **share), above),
        (
            axes("solve rate of the problem", type="category", categoryorder="array", categoryarray=list(CLASSES)),
            axes("entropy of the answers (nats)", rangemode="tozero"),
            below,
        ),
    ]
    return panels([part for part in parts if part[2]], tall=[320, 220], barmode="group")


def _equal() -> Trace:
    return curve_trace(
        [0, 1], [0, 1], name="right as often as its share", look=LOOKS["truth"], mode="lines", hoverinfo="skip"
    )


def reading(estimates: Sequence[Estimate]) -> str:
    first = by_condition(estimates)[0]
    found = {n.name: n for n in first if n.name != BY_SHARE}
    vote, single, over = (found[name] for name in ("vote_accuracy", "single_accuracy", "vote_overconfidence"))
    text = f"{opening(vote)}the vote is right on {with_interval(vote)} of {vote.n} problems, one sample on {with_interval(single)}"
    every = [n for n in first if n.name == BY_SHARE]
    classes = [n for n in every if (n.n or 0) >= TELLING] or every
    if len(classes) > 1:
        low, high = classes[0], classes[-1]
        text += (
            f"; where the top answer has {percent(high.at['mean_share'])} of the votes on average it is right on "
            f"{with_interval(high)} of {high.n} problems, where it has {percent(low.at['mean_share'])} on {with_interval(low)} of {low.n}"
        )
    return sentence(f"{text}; its share exceeds how often it is right by {in_points(over)}")


FIGURE = Figure(
    "votes",
    "Vote profile",
    "Is majority voting safe here?",
    ("votes",),
    shown,
    draw,
    reading,
    "answers and verdicts of several rollouts per problem (columns answer, correct)",
)
