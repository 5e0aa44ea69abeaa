"""How token entropies are distributed at stages of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.views.figure import Figure, Numbers
from equipoise.views.pick import arm_note, main_arm, named, pick, same_arm
from equipoise.views.style import (
    Look,
    Trace,
    axes,
    band,
    chart,
    curve_trace,
    digits,
    digits_of,
    percent,
    series,
    told,
    whiskers,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

CHANGES = ("fork_entropy_change_rel", "routine_entropy_change_rel")
_TICKS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10]
_SPLIT = 0.16  # of the width: the tokens that are all but certain stand apart, or they would flatten the rest


def shown(numbers: Numbers) -> list[Estimate]:
    bins = main_arm(pick(numbers, "distribution", "entropy_bin"))
    return [*bins, *same_arm(pick(numbers, "forks", *CHANGES), bins)]


def draw(estimates: Sequence[Estimate]) -> Plot:
    stages: dict[str, list[Estimate]] = {}
    for number in named(estimates, "entropy_bin"):
        stages.setdefault(_stage(number), []).append(number)
    traces: list[Trace] = []
    for place, (name, held) in enumerate(stages.items()):
        traces += _stage_traces(name, held, series(place), place)
    certain = axes(f"below {digits(held[0].at['to'])}", domain=[0, _SPLIT], showticklabels=False)
    return chart(
        traces,
        x=axes("token entropy (nats, log scale)", type="log", tickvals=_TICKS, domain=[_SPLIT + 0.16, 1], anchor="y"),
        y=axes("share of tokens in the bin", tickformat=".0%", anchor="x", rangemode="tozero"),
        xaxis2=certain | {"anchor": "y2"},
        yaxis2=axes("share of tokens", tickformat=".0%", anchor="x2", range=[0, 1]),
    )


def _stage(number: Estimate) -> str:
    return f"step {digits_of(number.at['step'])}" if "step" in number.at else "all rollouts"


def _stage_traces(name: str, held: list[Estimate], look: Look, place: int) -> list[Trace]:
    """A bar for the tokens below the first edge, a curve over the other bins at their middle on the log axis."""
    first, rest = held[0], held[1:]
    middle = [(n.at["from"] * (n.at["to"] or 1.5 * n.at["from"])) ** 0.5 for n in rest]
    bar = {
        "type": "bar",
        "x": [place],
        "y": [first.value],
        "name": name,
        "legendgroup": name,
        "showlegend": False,
        "marker": {"color": look.colour},
        "hovertext": [told(first, lead=f"{name}, below {digits(first.at['to'])} nats")],
        "hoverinfo": "text",
        "xaxis": "x2",
        "yaxis": "y2",
    }
    error = whiskers([place], [first.low], [first.high], colour="#808080") | {"xaxis": "x2", "yaxis": "y2"}
    around = band(middle, [n.low for n in rest], [n.high for n in rest], colour=look.colour, name=name, share=0.1)
    hover = [told(n, lead=f"{name}, {digits(n.at['from'])} to {digits(n.at['to'])} nats") for n in rest]
    curve = curve_trace(middle, [n.value for n in rest], name=name, look=look, hover=hover, mode="lines")
    return [bar, error, *([around] if around["x"] else []), curve]


def reading(estimates: Sequence[Estimate]) -> str:
    changes = [next(iter(named(estimates, name)), None) for name in CHANGES]
    fork, routine = changes
    bins = [n for n in named(estimates, "entropy_bin") if n.at["from"] == 0]
    when = f" at {_stage(bins[-1])}" if "step" in bins[-1].at else ""
    certain = f"{percent(bins[-1].value)} of the tokens lie below {digits(bins[-1].at['to'])} nats{when}"
    if fork is None or routine is None:
        return f"{certain}{arm_note(bins)}."
    verdict = {
        (True, True): "both the forks and the routine tokens shrank",
        (True, False): "the tail of forks shrank and the routine tokens did not clearly",
        (False, True): "the routine tokens sharpened and the forks did not clearly lose",
        (False, False): "neither clearly shrank",
    }[_fell(fork), _fell(routine)]
    return (
        f"From the first to the last steps the entropy of the forks, the top fifth, changed by {_share(fork)} and that of the "
        f"other tokens by {_share(routine)}: {verdict}; {certain}{arm_note(bins)}."
    )


def _fell(number: Estimate) -> bool:
    return number.high is not None and number.high < 0 if number.low is not None else number.value == -1


def _share(number: Estimate) -> str:
    around = "" if number.low is None else f" [{percent(number.low)}, {percent(number.high)}]"
    return f"{percent(number.value)}{around}"


FIGURE = Figure(
    name="entropy_distribution",
    title="Distribution of token entropies",
    question="Did the tail, the forks, die or did everything shrink?",
    needs=("distribution", "forks"),
    shown=shown,
    draw=draw,
    reading=reading,
    supply="token entropies (column entropies; a capture in the trainer writes them)",
)
