"""Reward against exp(H): what the run's entropy was exchanged for, the law's line, and its ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.views.figure import Figure, Numbers
from equipoise.views.pick import arm_note, main_arm, named, pick, same_arm
from equipoise.views.style import (
    GREEN,
    LOOKS,
    SCALE,
    Look,
    axes,
    chart,
    digits,
    digits_of,
    level,
    line,
    place,
    told,
    whiskers,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot


def shown(numbers: Numbers) -> list[Estimate]:
    points = main_arm(pick(numbers, "exchange", "exchange_exp_entropy", "exchange_reward"))
    rest = [*pick(numbers, "exchange", "exchange_fit", "exchange_truth"), *named(numbers.get("law", ()), "law_ceiling")]
    r2 = [n for n in pick(numbers, "law", "law_r2") if n.at.get("model") in ("law", "line in H")]
    return [*points, *same_arm([*rest, *r2], points)]


def draw(estimates: Sequence[Estimate]) -> Plot:
    x, y = named(estimates, "exchange_exp_entropy"), named(estimates, "exchange_reward")
    steps = [place(n, "step") for n in y]
    run = {
        "type": "scatter",
        "x": [n.value for n in x],
        "y": [n.value for n in y],
        "mode": "markers",
        "name": "the run, step by step",
        "marker": {
            "color": steps,
            "colorscale": SCALE,
            "size": 7,
            "line": {"width": 1, "color": "#808080"},
            "colorbar": {"title": {"text": "step"}, "thickness": 12, "outlinewidth": 0},
            "showscale": len(y) > 1,
        },
        "hovertext": [
            f"step {digits_of(b.at.get('step'))}: exp(H) {digits(a.value)}, reward {digits(b.value)}"
            for a, b in zip(x, y, strict=True)
        ],
        "hoverinfo": "text",
    }
    fit = named(estimates, "exchange_fit")
    law = line(fit, "exp_entropy", name="R = −a·exp(H) + b", look=LOOKS["fit"], mode="lines") if fit else []
    shapes, ceiling = [], [n for n in named(estimates, "law_ceiling") if n.value is not None]
    for number in ceiling:
        assert number.value is not None
        shapes.append(level(number.value, told(number, lead="ceiling b − a"), look=Look(GREEN, "dot")))
        law.append(whiskers([1.0], [number.low], [number.high], colour=GREEN))
    return chart(
        [*law, run], x=axes("exp(H), H in nats per token; 1 is no entropy left"), y="mean reward", shapes=shapes
    )


def reading(estimates: Sequence[Estimate]) -> str:
    truth, ceilings = named(estimates, "exchange_truth"), named(estimates, "law_ceiling")
    start = (
        f"The mean reward was {digits(truth[0].value)} over the last tenth of the run" if truth else "The run is drawn"
    )
    r2 = {str(n.at["model"]): digits(n.value) for n in named(estimates, "law_r2")}
    fitted = f" (R² {r2['law']}; a straight line in H has {r2['line in H']})" if {"law", "line in H"} <= set(r2) else ""
    for ceiling in ceilings:
        if ceiling.value is not None:
            return (
                f"{start}; with all entropy spent the law puts it at {told(ceiling)} rows{fitted}{arm_note(estimates)}."
            )
        return f"{start}; no ceiling is drawn, it needs {ceiling.missing}{arm_note(estimates)}."
    return f"{start}{arm_note(estimates)}."


FIGURE = Figure(
    name="exchange",
    title="Exchange of entropy for reward",
    question="How much reward is left before the entropy is spent?",
    needs=("exchange", "law"),
    shown=shown,
    draw=draw,
    reading=reading,
    supply="an entropy and a mean reward for each of 24 or more steps",
)
