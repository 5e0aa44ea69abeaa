"""The tokens with the highest mean entropy, as a table of bars: their entropy, share of all entropy, and change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from equipoise.base import Estimate
from equipoise.views.figure import Figure, Numbers
from equipoise.views.pick import arm_note, arms, named, pick
from equipoise.views.plain_text import token_name, token_text
from equipoise.views.style import BLUE, GREEN, VERMILION, Trace, axes, chart, digits, percent

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

COLUMNS = {
    "fork_token": ("mean entropy (nats)", BLUE, (0.0, 0.36)),
    "fork_token_share": ("share of all entropy", GREEN, (0.4, 0.66)),
    "fork_token_change": ("change (nats)", VERMILION, (0.74, 1.0)),
}


def shown(numbers: Numbers) -> list[Estimate]:
    """The arm with the most tokens counted."""
    found = arms(pick(numbers, "forks", *COLUMNS))
    return max(found.values(), key=lambda arm: sum(n.n or 0 for n in named(arm, "fork_token")), default=[])


def draw(estimates: Sequence[Estimate]) -> Plot:
    tokens = named(estimates, "fork_token")
    # By number, not by name: two tokens may look alike, and a category's name would be read as a date or a number.
    place = {n.at["id"]: number for number, n in enumerate(tokens)}
    traces: list[Trace] = []
    sides: dict[str, Any] = {}
    for number, (name, (title, colour, domain)) in enumerate(COLUMNS.items()):
        key = "" if number == 0 else str(number + 1)
        held = named(estimates, name)
        traces.append(_bars(held, [place[n.at["id"]] for n in held], title, colour) | {"xaxis": f"x{key}"})
        said = title if held else f"{title}: one step only"
        sides[f"xaxis{key}"] = axes(
            said, domain=domain, nticks=4, tickangle=0, tickformat=".0%" if number == 1 else "", **_room(held)
        )
    labels = axes(
        "token",
        tickvals=list(place.values()),
        ticktext=[token_text(n.at["token"]) for n in tokens],
        autorange="reversed",
        showgrid=False,
        zeroline=False,
    )
    height = 120 + 24 * len(tokens)
    return chart(traces, x=sides.pop("xaxis"), y=labels, height=height, showlegend=False, bargap=0.25, **sides)


def _room(held: Sequence[Estimate]) -> dict[str, Any]:
    """An axis with room for the numbers beside the bars."""
    values = [n.value for n in held if n.value is not None]
    low, high = min([0.0, *values]), max([0.0, *values])
    pad = 0.35 * (high - low) or 1.0
    return {"range": [low - pad if low < 0 else 0.0, high + pad if high > 0 or low == 0 else 0.0]}


def _bars(held: Sequence[Estimate], rows: list[int], title: str, colour: str) -> Trace:
    form = percent if title.startswith("share") else digits
    return {
        "type": "bar",
        "orientation": "h",
        "x": [n.value for n in held],
        "y": rows,
        "name": title,
        "marker": {"color": colour},
        "text": [form(n.value) for n in held],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertext": [f"{token_text(n.at['token'])}: {title} {form(n.value)}, {n.n:,} tokens" for n in held],
        "hoverinfo": "text",
    }


def reading(estimates: Sequence[Estimate]) -> str:
    tokens, changes = named(estimates, "fork_token"), named(estimates, "fork_token_change")
    top = tokens[0]
    share = next((n for n in named(estimates, "fork_token_share") if n.at["id"] == top.at["id"]), None)
    said = f"The highest mean entropy, {digits(top.value)} nats over {top.n:,} tokens, is that of {_name(top)}"
    if share is not None:
        said += f", with {percent(share.value)} of all entropy"
    if not changes:
        return f"{said}{arm_note(tokens)}."
    fell = [n for n in changes if n.value is not None and n.value < 0]
    worst = min(changes, key=lambda n: n.value or 0.0)
    said += f"; {len(fell)} of {len(changes)} of the tokens shown lost entropy since the first steps"
    return (
        f"{said}, {_name(worst)} most ({digits(worst.value)} nats){arm_note(tokens)}."
        if fell
        else f"{said}{arm_note(tokens)}."
    )


def _name(number: Estimate) -> str:
    token = number.at["token"]
    return f"token {token_name(token)}" if isinstance(token, int) else f"“{token_name(token)}”"


FIGURE = Figure(
    name="forking_tokens",
    title="Forking tokens",
    question="Which decision words stopped being decisions?",
    needs=("forks",),
    shown=shown,
    draw=draw,
    reading=reading,
    supply="token ids with their entropies (columns token_ids and entropies)",
)
