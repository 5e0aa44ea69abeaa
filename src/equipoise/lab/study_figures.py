"""Figures of a study, as SVG files: the frontier of pass@1 against pass@k, and entropy along training. Draws and computes no estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.files import atomic_write
from equipoise.lab.study_config import BASE
from equipoise.lab.svg import Plot, Point, Style, style_of

FRONTIER, ENTROPY = "frontier.svg", "entropy.svg"
_GREY = Style("#777777", dash="5 4")

Results = Mapping[str, Any]
Logs = Mapping[tuple[str, int | None], Sequence[Mapping[str, Any]]]  # of every arm and seed: a line per training step


def write_figures(results: Results, logs: Logs, folder: Path) -> None:
    drawn = {FRONTIER: draw_frontier(results), ENTROPY: draw_entropy(results, logs)}
    for name, text in drawn.items():
        if text is not None:
            with atomic_write(folder / name) as handle:
                handle.write(text.encode())


def draw_frontier(results: Results) -> str:
    """Every arm at the headline temperature with its intervals, and the base model's curve over temperatures."""
    k, headline = results["k_max"], results["headline"]
    names = ("pass@1", f"pass@{k}")
    plot = Plot(f"pass@1 and pass@{k} at T = {headline:g}, 95 % intervals", *names)
    points = {row["arm"]: row["points"] for row in results["frontier"]}
    plot.curve([_at(each, names) for each in points[BASE]], _GREY, label="base, cooled and heated")
    for each in points[BASE]:
        plot.point(_at(each, names), _GREY, note=f"T = {each['temperature']:g}")
    for number, arm in enumerate(_arms(results)):
        here = next(each for each in points[arm] if each["temperature"] == headline)
        x_interval, y_interval = (_interval(here[name]) for name in names)
        plot.point(_at(here, names), style_of(number), x_interval=x_interval, y_interval=y_interval, label=arm)
    return plot.draw()


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


def _interval(number: Mapping[str, Any]) -> Point | None:
    return None if number["low"] is None or number["high"] is None else (number["low"], number["high"])
