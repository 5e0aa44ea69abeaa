"""Groups without a gradient, and the samples that still carry one, over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.measures.health_steps import MISSING
from equipoise.views.conditions import by_condition
from equipoise.views.figure import Figure, Numbers
from equipoise.views.style import LOOKS, Look, Trace, axes, digits_of, line, percent, strips
from equipoise.views.words import opening, sentence, with_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

NAMES = {
    "dead_groups": ("no gradient (all rewards equal)", LOOKS["trained"]),
    "all_wrong": ("all wrong", LOOKS["wrong"]),
    "all_right": ("all right", LOOKS["right"]),
    "effective_samples": ("samples in groups with a gradient", LOOKS["base"]),
}


def shown(numbers: Numbers) -> list[Estimate]:
    """The training rollouts, or the most telling condition where no split is called train; what they lack, from the log."""
    found = [n for n in numbers.get("health_steps", ()) if n.name in NAMES and n.value is not None]
    recorded, logged = ([n for n in found if (n.at.get("source") == "log") == log] for log in (False, True))
    trained = [n for n in recorded if n.at.get("split") == "train"]
    groups = by_condition(trained or recorded, most=1)
    picked = groups[0] if groups else []
    steps = {name: {_key(n) for n in picked if n.name == name} for name in NAMES}
    # A trainer that records every hundredth step still logs them all.
    fuller = {name for name in NAMES if len({_key(n) for n in logged if n.name == name}) > len(steps[name])}
    picked = picked + [n for n in logged if n.name in fuller]
    return [n for name in NAMES for n in picked if n.name == name]


def _key(number: Estimate) -> str:
    return str(number.at["step"])


def draw(estimates: Sequence[Estimate]) -> Plot:
    def curves(names: Sequence[str]) -> list[Trace]:
        traces: list[Trace] = []
        for name in names:
            words, look = NAMES[name]
            for log in (False, True):
                mine = [n for n in estimates if n.name == name and (n.at.get("source") == "log") == log]
                if mine:
                    faint = Look(look.colour, "dot", "circle-open") if log else look
                    traces += line(mine, "step", name=f"{words}, logged" if log else words, look=faint)
        return traces

    parts = [
        (axes("share of groups", tickformat=".0%", rangemode="tozero"), curves(list(NAMES)[:3])),
        (axes("share of samples", tickformat=".0%", rangemode="tozero"), curves(["effective_samples"])),
    ]
    return strips([part for part in parts if part[1]], x="step")


def reading(estimates: Sequence[Estimate]) -> str:
    curves = {name: _longer([n for n in estimates if n.name == name]) for name in NAMES}
    told = []
    for name, words in (
        ("dead_groups", "groups without a gradient"),
        ("all_wrong", "groups that are all wrong"),
        ("all_right", "groups that are all right"),
    ):
        if curves[name]:
            first, last = curves[name][0], curves[name][-1]
            steps = f"at step {digits_of(last.at['step'])}"
            if len(curves[name]) > 1:
                steps = f"{percent(first.value)} at step {digits_of(first.at['step'])}, {with_interval(last)} {steps}"
            else:
                steps = f"{with_interval(last)} {steps}"
            told.append(f"{words}: {steps}")
    if curves["effective_samples"]:
        last = curves["effective_samples"][-1]
        told.append(f"{with_interval(last)} of the samples still carry a gradient")
    return sentence(opening(estimates[0]) + "; ".join(told))


def _longer(estimates: Sequence[Estimate]) -> list[Estimate]:
    """The recorded curve or the logged one, whichever has more steps."""
    recorded, logged = ([n for n in estimates if (n.at.get("source") == "log") == log] for log in (False, True))
    return logged if len(logged) > len(recorded) else recorded


FIGURE = Figure(
    "group_health",
    "Group health",
    "Is there still a gradient?",
    ("health_steps",),
    shown,
    draw,
    reading,
    MISSING,
)
