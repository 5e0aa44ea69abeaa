"""One plot as plain SVG text: axes with round ticks, curves, bands, points with error bars, a legend. All text is escaped.

The axes hold all marks but those that are put `outside`: these stand at the margin, with an arrow and their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, hypot, isfinite, log10

Point = tuple[float, float]

WIDTH, HEIGHT = 620, 420  # of the plot's own area and its labels; the legend is beside it
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 52
LINE, NOTE = 18, 14  # of the legend, and of a note of several lines
INSET, ARROW = 20, 17  # a point that lies outside, from the edges, and how far its arrow reaches
FONT = 'font-family="system-ui, sans-serif"'
# Okabe and Ito's colours, told apart by most eyes (https://jfly.uni-koeln.de/color/), but for their yellow, which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SHAPES = ("circle", "square", "diamond", "triangle")
DASHES = ("", "7 4", "2 4")
_RIM = 'fill="#444444" stroke="#ffffff" stroke-width="3" paint-order="stroke"'  # keeps a note readable on a curve


@dataclass(frozen=True, slots=True)
class Style:
    colour: str
    shape: str = "circle"  # of a point
    dash: str = ""  # of a curve: lengths of its strokes and gaps


def style_of(number: int) -> Style:
    """Points differ for the first 28 numbers, as 7 colours and 4 shapes have no common divisor, and curves for the first 21."""
    return Style(
        COLOURS[number % len(COLOURS)], SHAPES[number % len(SHAPES)], DASHES[number // len(COLOURS) % len(DASHES)]
    )


@dataclass(frozen=True, slots=True)
class Plot:
    """Data in its own units: marks are added first, then `draw` chooses ticks around all of them."""

    title: str
    x_name: str
    y_name: str
    y_from: float | None = None  # a value that the axis starts at or below, where that is not the lowest of the data
    _marks: list[_Mark] = field(default_factory=list)
    _legend: list[tuple[str, Style, bool]] = field(default_factory=list)

    def curve(self, points: Sequence[Point], style: Style, *, label: str = "") -> None:
        self._add(_Curve(tuple(points), style))
        if label:
            self._legend.append((label, style, True))

    def band(self, lower: Sequence[Point], upper: Sequence[Point], style: Style) -> None:
        self._add(_Band((*lower, *reversed(upper)), style.colour))

    def point(
        self,
        at: Point,
        style: Style,
        *,
        x_interval: Point | None = None,
        y_interval: Point | None = None,
        label: str = "",
        note: str = "",
    ) -> None:
        """`note` stands beside the point; `label` in the legend."""
        self._add(_Dot(at, style, x_interval, y_interval, note))
        if label:
            self._legend.append((label, style, False))

    def outside(self, at: Point, style: Style, notes: Sequence[str], *, label: str = "") -> None:
        """A point that the axes need not hold: at the margin nearest to it, with an arrow that points to it and `notes` beside it."""
        _check([at], self.title)
        before = sum(isinstance(mark, _Outside) for mark in self._marks)
        self._marks.append(_Outside(at, style, tuple(notes), before))
        if label:
            self._legend.append((label, style, False))

    def draw(self) -> str:
        xs, ys = zip(*(point for mark in self._marks for point in mark.extent()), strict=True)
        ys = ys if self.y_from is None else (*ys, self.y_from)
        x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
        frame = Frame(x_ticks, y_ticks)
        longest = max((len(label) for label, *_ in self._legend), default=0)
        width = WIDTH + (36 + 7 * longest if longest else 0)
        height = max(HEIGHT, TOP + LINE * len(self._legend) + 8)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" {FONT} font-size="12">',
            f"<title>{_escaped(self.title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            f'<text x="{LEFT}" y="22" font-size="14" font-weight="600">{_escaped(self.title)}</text>',
            *self._axes(frame),
            *(part for mark in self._marks for part in mark.draw(frame)),
            *_legend(self._legend),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _add(self, mark: _Mark) -> None:
        _check(mark.extent(), self.title)
        self._marks.append(mark)

    def _axes(self, frame: Frame) -> Iterable[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        for tick in frame.x_ticks:
            x = frame.x(tick)
            yield f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#e5e5e5"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#444444">{tick:g}</text>'
        for tick in frame.y_ticks:
            y = frame.y(tick)
            yield f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#e5e5e5"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#444444">{tick:g}</text>'
        yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#444444"/>'
        middle = (LEFT + right) / 2
        yield f'<text x="{middle:g}" y="{HEIGHT - 12}" text-anchor="middle">{_escaped(self.x_name)}</text>'
        turned = f"rotate(-90 16 {(TOP + bottom) / 2:g})"
        yield (
            f'<text x="16" y="{(TOP + bottom) / 2:g}" text-anchor="middle" transform="{turned}">{_escaped(self.y_name)}</text>'
        )


@dataclass(frozen=True, slots=True)
class Frame:
    """From data to pixels: the first and last tick are the edges."""

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]

    def x(self, value: float) -> float:
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def path(self, points: Iterable[Point]) -> str:
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)


def ticks(low: float, high: float, *, about: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten that hold both, about that many steps of them."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value: something around it
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    power = 10.0 ** floor(log10((high - low) / about))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs((high - low) / s - about))
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class _Curve:
    points: tuple[Point, ...]
    style: Style

    def extent(self) -> Iterable[Point]:
        return self.points

    def draw(self, frame: Frame) -> Iterable[str]:
        # A single point twice: its round ends are a dot.
        path = frame.path(self.points * 2 if len(self.points) == 1 else self.points)
        yield f'<path d="{path}" fill="none" stroke-linejoin="round" {_stroke(self.style)}/>'


@dataclass(frozen=True, slots=True)
class _Band:
    outline: tuple[Point, ...]
    colour: str

    def extent(self) -> Iterable[Point]:
        return self.outline

    def draw(self, frame: Frame) -> Iterable[str]:
        yield f'<path d="{frame.path(self.outline)}Z" fill="{self.colour}" fill-opacity="0.12"/>'


@dataclass(frozen=True, slots=True)
class _Dot:
    at: Point
    style: Style
    x_interval: Point | None
    y_interval: Point | None
    note: str

    def extent(self) -> Iterable[Point]:
        yield self.at
        yield from ((x, self.at[1]) for x in self.x_interval or ())
        yield from ((self.at[0], y) for y in self.y_interval or ())

    def draw(self, frame: Frame) -> Iterable[str]:
        x, y, colour = frame.x(self.at[0]), frame.y(self.at[1]), self.style.colour
        if self.x_interval is not None:
            low, high = map(frame.x, self.x_interval)
            yield f'<path d="M{low:.1f} {y:.1f}H{high:.1f}" stroke="{colour}" stroke-opacity="0.6"/>'
        if self.y_interval is not None:
            low, high = map(frame.y, self.y_interval)
            yield f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{colour}" stroke-opacity="0.6"/>'
        yield _shape(x, y, self.style)
        if self.note:
            yield f'<text x="{x:.1f}" y="{y - 9:.1f}" font-size="11" text-anchor="middle" {_RIM}>{_escaped(self.note)}</text>'


@dataclass(frozen=True, slots=True)
class _Outside:
    at: Point
    style: Style
    notes: tuple[str, ...]
    before: int  # others outside, whose notes this one's stand clear of

    def extent(self) -> Iterable[Point]:
        return ()

    def draw(self, frame: Frame) -> Iterable[str]:
        x, y = frame.x(self.at[0]), frame.y(self.at[1])
        left, right, top, bottom = LEFT + INSET, WIDTH - RIGHT - INSET, TOP + INSET, HEIGHT - BOTTOM - INSET
        here_x, here_y = min(max(x, left), right), min(max(y, top), bottom)
        far = hypot(x - here_x, y - here_y)
        if far:
            yield _arrow(here_x, here_y, (x - here_x) / far, (y - here_y) / far, self.style.colour)
        yield _shape(here_x, here_y, self.style)
        is_left = here_x < (left + right) / 2
        first = here_y + 4 - NOTE * (len(self.notes) - 1) * (here_y > (top + bottom) / 2)
        first += NOTE * len(self.notes) * self.before * (-1 if here_y > (top + bottom) / 2 else 1)
        for line, note in enumerate(self.notes):
            anchor = f'x="{here_x + (12 if is_left else -12):.1f}" text-anchor="{"start" if is_left else "end"}"'
            yield f'<text {anchor} y="{first + NOTE * line:.1f}" font-size="11" {_RIM}>{_escaped(note)}</text>'


_Mark = _Curve | _Band | _Dot | _Outside


def _check(points: Iterable[Point], title: str) -> None:
    if not all(isfinite(value) for point in points for value in point):
        raise ValueError(f"a figure cannot show nan or infinity: {title}")


def _arrow(x: float, y: float, ux: float, uy: float, colour: str) -> str:
    """From the middle of a point as far as the margin leaves room, along a vector of length 1."""
    tip_x, tip_y = x + ARROW * ux, y + ARROW * uy
    wings = [(tip_x - 5 * ux + side * 3 * uy, tip_y - 5 * uy - side * 3 * ux) for side in (1, -1)]
    head = "L".join(f"{wx:.1f} {wy:.1f}" for wx, wy in (wings[0], (tip_x, tip_y), wings[1]))
    return (
        f'<path d="M{x:.1f} {y:.1f}L{tip_x:.1f} {tip_y:.1f}M{head}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    )


def _escaped(text: str) -> str:
    """For an element or an attribute; what XML cannot hold becomes U+FFFD."""
    return escape(_NOT_XML.sub("\ufffd", text))


def _stroke(style: Style) -> str:
    dash = f' stroke-dasharray="{style.dash}"' if style.dash else ""
    return f'stroke="{style.colour}" stroke-width="1.6" stroke-linecap="round"{dash}'


def _shape(x: float, y: float, style: Style) -> str:
    inside = f'fill="{style.colour}" stroke="#ffffff" stroke-width="0.8"'
    if style.shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {inside}/>'
    corners = {
        "square": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
        "diamond": ((0, -5.6), (5.6, 0), (0, 5.6), (-5.6, 0)),
        "triangle": ((0, -5.2), (5.2, 4), (-5.2, 4)),
    }[style.shape]
    return f'<path d="M{"L".join(f"{x + dx:.1f} {y + dy:.1f}" for dx, dy in corners)}Z" {inside}/>'


def _legend(entries: Sequence[tuple[str, Style, bool]]) -> Iterable[str]:
    for number, (label, style, is_curve) in enumerate(entries):
        x, y = WIDTH + 10, TOP + 8 + LINE * number
        if is_curve:
            yield f'<path d="M{x - 10} {y}H{x + 10}" {_stroke(style)}/>'
        else:
            yield _shape(x, y, style)
        yield f'<text x="{x + 16}" y="{y + 4}">{_escaped(label)}</text>'
