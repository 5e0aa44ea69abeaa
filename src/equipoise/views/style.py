"""How all figures look: colours by role, lines with bands, axes. Traces are plain dicts; only `chart` and `strips` need Plotly.

Okabe and Ito's colours, told apart by most eyes (https://jfly.uni-koeln.de/color/). The first four of `SERIES` have a contrast of
3 : 1 or more on a white and on a near-black page; all differ also by dash and marker, as colour alone tells nothing to some.
The plot's ground is transparent and its ink a grey that both bear; a page sets its own as `layout.font.color`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from equipoise.base import Estimate
from equipoise.errors import MissingExtra
from equipoise.views.plain_text import plotly_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

Trace = dict[str, Any]  # as Plotly's JSON has it
Numbers1D = Sequence[float | None]

INK = "#757575"
GRID = "rgba(128, 128, 128, 0.22)"
SCALE = "Cividis"  # from low to high, even for all kinds of colour vision
HEIGHT = 380


@dataclass(frozen=True, slots=True)
class Look:
    colour: str
    dash: str = "solid"
    symbol: str = "circle"


BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
LOOKS: Mapping[str, Look] = {
    "base": Look(BLUE, "dash", "square"),
    "trained": Look(VERMILION),
    "right": Look(GREEN),
    "wrong": Look(PURPLE, "dash", "x"),
    "entropy": Look(BLUE),
    "reward": Look(GREEN, symbol="square"),
    "control": Look(PURPLE, symbol="diamond"),
    "fit": Look(VERMILION, "dash"),
    "truth": Look("#808080", "dot"),
    "other": Look("#808080"),
}
# For arms, checkpoints or sources without a role of their own.
SERIES = (
    Look(BLUE),
    Look(VERMILION, "dash", "square"),
    Look(GREEN, "dot", "diamond"),
    Look(PURPLE, "dashdot", "cross"),
    Look(ORANGE, "longdash", "triangle-up"),
    Look(SKY, "longdashdot", "star"),
)


def series(number: int) -> Look:
    """The look of arm `number`, from 0; from the seventh on colours meet other dashes and markers."""
    lap, place = divmod(number, len(SERIES))
    shape = SERIES[(place + lap) % len(SERIES)]
    return Look(SERIES[place].colour, shape.dash, shape.symbol)


def veil(colour: str, share: float = 0.2) -> str:
    """The colour (#rrggbb) let through to this share: a band's."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {share})"


# --- numbers as text


def digits(value: float | None) -> str:
    """Three significant digits, without an exponent from 0.0001 to a million; a dash where it was not measured."""
    if value is None or not isfinite(value):
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
        return f"{value:,.{places}f}"
    return f"{value:.2g}"


def percent(value: float | None) -> str:
    """A share as a person says it, with one place below 10%."""
    if value is None or not isfinite(value):
        return "–"
    if 0 < abs(value) < 5e-4:
        return "<0.1%" if value > 0 else ">-0.1%"
    return f"{100 * value:.{1 if 0 < abs(value) < 0.1 else 0}f}%"


def told(number: Estimate, *, unit: str = "", lead: str = "") -> str:
    """An estimate for hover: `step 12: 0.412 nats [0.380, 0.444], n = 64`. `lead` is escaped."""
    text = f"{plotly_text(lead)}: " if lead else ""
    text += f"{digits(number.value)}{' ' + plotly_text(unit) if unit else ''}"
    if number.low is not None and number.high is not None:
        text += f" [{digits(number.low)}, {digits(number.high)}]"
    return text if number.n is None else f"{text}, n = {number.n:,}"


def place(number: Estimate, key: str) -> float | None:
    """Where an estimate stands on an axis: `at[key]`, and the middle of a stretch such as step [10, 20]."""
    at = number.at.get(key)
    if isinstance(at, list | tuple):
        return float(at[0] + at[-1]) / 2
    return None if at is None else float(at)


# --- traces


def band(
    x: Numbers1D, low: Numbers1D, high: Numbers1D, *, colour: str, name: str = "", share: float = 0.2, **more: Any
) -> Trace:
    """The area from low to high, in pieces where a bound is not known; a lone point is an upright stroke."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for piece in _pieces(x, low, high):
        xs += [*(at for at, _, _ in piece), *(at for at, _, _ in reversed(piece)), None]
        ys += [*(bottom for _, bottom, _ in piece), *(top for _, _, top in reversed(piece)), None]
    trace: Trace = {
        "type": "scatter",
        "x": xs[:-1],
        "y": ys[:-1],
        "mode": "lines",
        "fill": "toself",
        "fillcolor": veil(colour, share),
        "line": {"color": veil(colour, min(1.0, 1.75 * share)), "width": 1},
        "name": plotly_text(name),
        "legendgroup": plotly_text(name),
        "showlegend": False,
        "hoverinfo": "skip",
    }
    return trace | more


def _pieces(x: Numbers1D, low: Numbers1D, high: Numbers1D) -> list[list[tuple[float, float, float]]]:
    pieces: list[list[tuple[float, float, float]]] = [[]]
    for at, bottom, top in zip(x, low, high, strict=True):
        if at is not None and bottom is not None and top is not None:
            pieces[-1].append((at, bottom, top))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def line(
    estimates: Sequence[Estimate], x: str = "step", *, name: str, look: Look, unit: str = "", **more: Any
) -> list[Trace]:
    """Estimates as a curve over `at[x]`, in the order given, with the band of their intervals behind it where they have one."""
    xs = [place(number, x) for number in estimates]
    curve = curve_trace(
        xs,
        [number.value for number in estimates],
        name=name,
        look=look,
        hover=[told(number, unit=unit, lead=f"{name}, {x} {digits_of(number.at.get(x))}") for number in estimates],
        **more,
    )
    around = band(xs, [n.low for n in estimates], [n.high for n in estimates], colour=look.colour, name=name)
    return (
        [around | {key: more[key] for key in ("legendgroup", "xaxis", "yaxis") if key in more}, curve]
        if around["x"]
        else [curve]
    )


def digits_of(at: Any) -> str:
    """A place on an axis as text: 12, or 10–20 for a stretch."""
    if isinstance(at, list | tuple):
        return str(at[0]) if at[0] == at[-1] else f"{at[0]}–{at[-1]}"
    return f"{at:g}" if isinstance(at, float) else str(at)


def curve_trace(
    x: Sequence[Any], y: Numbers1D, *, name: str, look: Look, hover: Sequence[str] | None = None, **more: Any
) -> Trace:
    """A line through points; few points are marked too. `hover` has been escaped by its maker."""
    trace: Trace = {
        "type": "scatter",
        "x": list(x),
        "y": list(y),
        "mode": "lines+markers" if len(y) <= 40 else "lines",
        "name": plotly_text(name),
        "legendgroup": plotly_text(name),
        "line": {"color": look.colour, "dash": look.dash, "width": 2},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 6},
    }
    if hover is not None:
        trace |= {"hovertext": list(hover), "hoverinfo": "text"}
    return trace | more


def whiskers(x: Sequence[Any], low: Numbers1D, high: Numbers1D, *, colour: str, upright: bool = True) -> Trace:
    """Intervals as strokes, with their own bounds rather than distances from the value. `upright` False: along x."""
    along: list[Any] = []
    bounds: list[float | None] = []
    for at, bottom, top in zip(x, low, high, strict=True):
        if bottom is not None and top is not None:
            along += [at, at, None]
            bounds += [bottom, top, None]
    return {
        "type": "scatter",
        "x": along if upright else bounds,
        "y": bounds if upright else along,
        "mode": "lines",
        "line": {"color": colour, "width": 1.5},
        "showlegend": False,
        "hoverinfo": "skip",
    }


def points(estimates: Sequence[Estimate], x: str, *, name: str, look: Look, unit: str = "", **more: Any) -> list[Trace]:
    """Estimates as marks over `at[x]` with their intervals as strokes."""
    xs = [place(number, x) for number in estimates]
    strokes = whiskers(xs, [n.low for n in estimates], [n.high for n in estimates], colour=look.colour)
    marks = curve_trace(
        xs,
        [number.value for number in estimates],
        name=name,
        look=look,
        hover=[told(number, unit=unit, lead=f"{name}, {x} {digits_of(number.at.get(x))}") for number in estimates],
        **{"mode": "markers", **more},
    )
    return [strokes, marks] if strokes["x"] else [marks]


# --- the plot


def level(y: float, text: str, *, look: Look = LOOKS["truth"], yref: str = "y") -> dict[str, Any]:
    """A line across the plot at y, with a word on it: an entry of `shapes`."""
    return _rule(text, look) | {"x0": 0, "x1": 1, "xref": "x domain", "y0": y, "y1": y, "yref": yref}


def upright(x: float, text: str, *, look: Look = LOOKS["truth"]) -> dict[str, Any]:
    """A line from bottom to top, through all strips, at x, with a word on it: an entry of `shapes`."""
    return _rule(text, look) | {"y0": 0, "y1": 1, "yref": "paper", "x0": x, "x1": x, "xref": "x"}


def _rule(text: str, look: Look) -> dict[str, Any]:
    return {
        "type": "line",
        "line": {"color": look.colour, "dash": look.dash, "width": 1.5},
        "label": {"text": plotly_text(text), "textposition": "end", "font": {"size": 11}},
    }


def axes(title: str, **more: Any) -> dict[str, Any]:
    """An axis: `title` names the number and its unit. `more` is Plotly's: type="log", range, tickvals, …"""
    shown: dict[str, Any] = {
        "title": {"text": plotly_text(title, limit=80)},
        "gridcolor": GRID,
        "linecolor": GRID,
        "zerolinecolor": GRID,
        "automargin": True,
    }
    return shown | more


def chart(
    traces: Iterable[Trace],
    *,
    x: str | Mapping[str, Any],
    y: str | Mapping[str, Any],
    height: int = HEIGHT,
    shapes: Sequence[Mapping[str, Any]] = (),
    **layout: Any,
) -> Plot:
    """One plot. `x` and `y`: the axis titles with units, or what `axes` gives."""
    sides = {"xaxis": axes(x) if isinstance(x, str) else dict(x), "yaxis": axes(y) if isinstance(y, str) else dict(y)}
    return _plot(list(traces), {**sides, "height": height, "shapes": [*shapes], **layout})


def strips(
    parts: Sequence[tuple[str | Mapping[str, Any], Sequence[Trace]]],
    *,
    x: str | Mapping[str, Any],
    height: int | None = None,
    shapes: Sequence[Mapping[str, Any]] = (),
    **layout: Any,
) -> Plot:
    """Plots over one x axis, the first on top: (y axis title or `axes`, traces) each. Their y axes are y, y2, y3, …"""
    gap = 0.06
    tall = (1 - gap * (len(parts) - 1)) / len(parts)
    traces, sides = [], {}
    for number, (title, drawn) in enumerate(parts):
        key = "" if number == 0 else str(number + 1)
        top = 1 - number * (tall + gap)
        side = axes(title) if isinstance(title, str) else dict(title)
        sides[f"yaxis{key}"] = side | {"domain": [max(0.0, top - tall), top]}
        traces += [trace | {"yaxis": f"y{key}"} for trace in drawn]
    last = "y" if len(parts) == 1 else f"y{len(parts)}"
    sides["xaxis"] = (axes(x) if isinstance(x, str) else dict(x)) | {"anchor": last}
    tall_px = height or 220 * len(parts) + 60
    return _plot(traces, {**sides, "height": tall_px, "shapes": [*shapes], **layout})


def _plot(traces: list[Trace], layout: dict[str, Any]) -> Plot:
    try:
        from plotly.graph_objects import Figure as Plot
    except ModuleNotFoundError:
        raise MissingExtra("report", needed_for="drawing a figure") from None
    clear = "rgba(0, 0, 0, 0)"
    common = {
        "template": "none",
        "paper_bgcolor": clear,
        "plot_bgcolor": clear,
        "font": {"color": INK, "size": 13, "family": "system-ui, sans-serif"},
        "margin": {"l": 56, "r": 16, "t": 36, "b": 48},
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
    }
    return Plot(data=traces, layout=common | layout)
