"""Figures of a study, as SVG files: the frontier of pass@1 against pass@k, and entropy along training. Draws and computes no estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from equipoise.files import atomic_write
from equipoise.lab.study_config import BASE
from equipoise.lab.svg import Plot, Point, Style, style_of

FRONTIER, ENTROPY = "frontier.svg", "entropy.svg"
_GREY = Style("#777777", dash="5 4")

GAP = 0.4  # of an axis: with so much of it empty, what is beyond squeezes all others together
FEW = 1 / 8  # of the arms: more of them are no exception, and belong on the axes

Results = Mapping[str, Any]
Logs = Mapping[tuple[str, int | None], Sequence[Mapping[str, Any]]]  # of every arm and seed: a line per training step


def write_figures(results: Results, logs: Logs, folder: Path) -> None:
    drawn = {FRONTIER: draw_frontier(results), ENTROPY: draw_entropy(results, logs)}
    for name, text in drawn.items():
        if text is not None:
            with atomic_write(folder / name) as handle:
                handle.write(text.encode())


def draw_frontier(results: Results) -> str:
    """Every arm at the headline temperature with its intervals, and the base model's curve over temperatures.

    The axes serve the base model and most of the arms: one that lies far from all others stands at the margin, with its numbers.
    """
    k, headline = results["k_max"], results["headline"]
    names = ("pass@1", f"pass@{k}")
    plot = Plot(f"pass@1 and pass@{k} at T = {headline:g}, 95 % intervals", *names)
    points = {row["arm"]: row["points"] for row in results["frontier"]}
    base = [_at(each, names) for each in points[BASE]]
    plot.curve(base, _GREY, label="base, cooled and heated")
    for each in points[BASE]:
        plot.point(_at(each, names), _GREY, note=f"T = {each['temperature']:g}")
    arms = {arm: next(each for each in points[arm] if each["temperature"] == headline) for arm in _arms(results)}
    at_arm = {arm: _at(here, names) for arm, here in arms.items()}
    held_against = [at_arm[arm] for arm in at_arm if arm == results.get("plain")]  # stays on the axes, as the base does
    aside = find_far(at_arm, [*base, *held_against])
    for number, (arm, here) in enumerate(arms.items()):
        at, style = at_arm[arm], style_of(number)
        if arm in aside:
            told = [f"{name} {_told(here[name])}" for name in names]
            plot.outside(at, style, [f"{arm}: {told[0]}", *told[1:]], label=arm)
        else:
            x_interval, y_interval = (_interval(here[name]) for name in names)
            plot.point(at, style, x_interval=x_interval, y_interval=y_interval, label=arm)
    return plot.draw()


def find_far(arms: Mapping[str, Point], others: Sequence[Point]) -> set[str]:
    """Arms beyond a gap of `GAP` of an axis, if they are few (`FEW` of all arms) and none of `others` is beyond it as well."""
    far: set[str] = set()
    while True:
        left = {arm: at for arm, at in arms.items() if arm not in far}
        found = [
            beyond
            for axis in (0, 1)
            for beyond in _beyond_gap({arm: at[axis] for arm, at in left.items()}, [at[axis] for at in others])
            if len(far) + len(beyond) <= FEW * len(arms)
        ]
        if not found:
            return far
        far |= min(found, key=len)


def _beyond_gap(arms: Mapping[str, float], others: Sequence[float]) -> list[set[str]]:
    """The arms below and above the widest gap, on the sides where there is nothing else; none where it is narrow."""
    values = sorted([*arms.values(), *others])
    width, low = max(((after - before, before) for before, after in pairwise(values)), default=(0.0, 0.0))
    if width < GAP * (values[-1] - values[0]) or not width:
        return []
    sides = []
    if all(value > low for value in others):
        sides.append({arm for arm, value in arms.items() if value <= low})
    if all(value <= low for value in others):
        sides.append({arm for arm, value in arms.items() if value > low})
    return sides


def draw_entropy(results: Results, logs: Logs) -> str | None:
    """The mean over an arm's seeds at every step, and between the lowest and the highest seed a band. None: no step was logged."""
    plot = Plot("Entropy of the training completions", "step", "nats per token", y_from=0.0)
    drawn = 0
    for number, arm in enumerate(_arms(results)):
        seeds = [{line["step"]: line["entropy"] for line in log} for (name, _), log in logs.items() if name == arm]
        steps = [step for step in (seeds[0] if seeds else ()) if all(seed.get(step) is not None for seed in seeds)]
        if not steps:
            continue
        values = [[seed[step] for seed in seeds] for step in steps]
        style = style_of(number)
        if len(seeds) > 1:
            lower, upper = ([(s, pick(v)) for s, v in zip(steps, values, strict=True)] for pick in (min, max))
            plot.band(lower, upper, style)
        means = [sum(v) / len(v) for v in values]
        plot.curve(list(zip(steps, means, strict=True)), style, label=arm)
        drawn += 1
    return plot.draw() if drawn else None


def _arms(results: Results) -> list[str]:
    """In one order for both figures, so that an arm has one colour."""
    return [row["arm"] for row in results["frontier"] if row["arm"] != BASE]


def _at(point: Mapping[str, Any], names: tuple[str, str]) -> Point:
    return point[names[0]]["value"], point[names[1]]["value"]


def _told(number: Mapping[str, Any]) -> str:
    bounds = _interval(number)
    return f"{number['value']:.3f}" + ("" if bounds is None else f" [{bounds[0]:.3f}, {bounds[1]:.3f}]")


def _interval(number: Mapping[str, Any]) -> Point | None:
    return None if number["low"] is None or number["high"] is None else (number["low"], number["high"])
