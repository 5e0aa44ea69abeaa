"""What the first part of the run would have forecast of its end, against what came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.views.figure import Figure, Numbers
from equipoise.views.pick import arm_note, main_arm, named, pick, same_arm
from equipoise.views.style import LOOKS, Trace, axes, chart, curve_trace, digits, level, percent, points, series, told

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

STATES = {"fit": "the law", "no fit": "the law, where it would refuse to fit"}


def shown(numbers: Numbers) -> list[Estimate]:
    """The backtest of the arm that `exchange` shows."""
    run = main_arm(pick(numbers, "exchange", "exchange_exp_entropy", "exchange_reward"))
    forecasts = same_arm(pick(numbers, "law", "law_forecast"), run)
    beside = same_arm(pick(numbers, "exchange", "exchange_rival", "exchange_truth"), run)
    return [*forecasts, *beside] if forecasts else []


def draw(estimates: Sequence[Estimate]) -> Plot:
    traces: list[Trace] = []
    for state, name in STATES.items():
        held = [n for n in named(estimates, "law_forecast") if n.at.get("state") == state]
        if held:
            look = LOOKS["fit" if state == "fit" else "other"]
            symbol = {"color": look.colour, "symbol": "circle" if state == "fit" else "circle-open", "size": 9}
            traces += points(held, "share", name=name, look=look, marker=symbol)
    rivals = named(estimates, "exchange_rival")
    for number, model in enumerate(dict.fromkeys(n.at["model"] for n in rivals)):
        held = [n for n in rivals if n.at["model"] == model]
        hover = [told(n, lead=f"{model}, {percent(n.at['share'])} of the run") for n in held]
        at, value = [n.at["share"] for n in held], [n.value for n in held]
        traces.append(curve_trace(at, value, name=str(model), look=series(number + 2), hover=hover, mode="markers"))
    shapes = [
        level(n.value, f"what came: {digits(n.value)}")
        for n in named(estimates, "exchange_truth")
        if n.value is not None
    ]
    share = axes("share of the run that was used", tickformat=".0%", range=[0.15, 0.75])
    return chart(traces, x=share, y="forecast of the final reward", shapes=shapes)


def reading(estimates: Sequence[Estimate]) -> str:
    forecasts, truths = named(estimates, "law_forecast"), named(estimates, "exchange_truth")
    truth = truths[0].value if truths else None
    bounded = [n for n in forecasts if n.low is not None and n.high is not None]
    last = forecasts[-1]
    said = f"from {percent(last.at['share'])} of the run the law said {told(last)} rows"
    if last.at.get("state") != "fit":
        said += ", where it would refuse to fit"
    if truth is None:
        return f"{said[:1].upper()}{said[1:]}{arm_note(forecasts)}."
    if not bounded:
        return f"What came was {digits(truth)}; {said}; no forecast has an interval{arm_note(forecasts)}."
    held = sum(n.low <= truth <= n.high for n in bounded)  # type: ignore[operator]
    return f"What came was {digits(truth)}; {held} of {len(bounded)} forecasts with an interval hold it; {said}{arm_note(forecasts)}."


FIGURE = Figure(
    name="forecast",
    title="Forecast backtest",
    question="May the forecast be believed?",
    needs=("law", "exchange"),
    shown=shown,
    draw=draw,
    reading=reading,
    supply="an entropy and a mean reward for each of 24 or more steps",
)
