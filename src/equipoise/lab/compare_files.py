"""What a comparison leaves behind: its numbers, every answer, and the frontier as a figure. Computes no estimate."""

from __future__ import annotations

import json
from pathlib import Path

from equipoise.base import Estimate
from equipoise.files import atomic_write
from equipoise.lab.compare import Compared
from equipoise.lab.svg import Plot, Point, Style, style_of

NUMBERS, CHOICES, FRONTIER = "compare.json", "choices.jsonl", "frontier.svg"
_GREY = Style("#777777", dash="5 4")


def write_compared(compared: Compared, folder: Path) -> list[Path]:
    """compare.json, choices.jsonl with a line for every answer, and frontier.svg where accuracy is known."""
    texts = {
        NUMBERS: json.dumps(compared.to_dict(), indent=2, allow_nan=False) + "\n",
        CHOICES: "".join(json.dumps(one.to_dict()) + "\n" for one in compared.ran),
    }
    figure = draw_frontier(compared)
    if figure is not None:
        texts[FRONTIER] = figure
    for name, text in texts.items():
        with atomic_write(folder / name) as handle:
            handle.write(text.encode())
    return [folder / name for name in texts]


def draw_frontier(compared: Compared) -> str | None:
    """Accuracy against tokens, with intervals; a dashed line joins those that no other beats. None: no verdicts."""
    points = {arm.strategy: (arm.tokens.value, arm.accuracy.value) for arm in compared.arms}
    shown = {name: (x, y) for name, (x, y) in points.items() if x is not None and y is not None}
    if not shown:
        return None
    plot = Plot("Accuracy and cost, 95 % intervals over problems", f"{compared.count} a question", "accuracy")
    edge = sorted(shown[arm.strategy] for arm in compared.arms if arm.on_frontier)
    if len(edge) > 1:
        plot.curve(edge, _GREY, label="frontier")
    for number, arm in enumerate(compared.arms):
        if arm.strategy in shown:
            plot.point(
                shown[arm.strategy],
                style_of(number),
                x_interval=_interval(arm.tokens),
                y_interval=_interval(arm.accuracy),
                label=arm.strategy,
            )
    return plot.draw()


def _interval(number: Estimate) -> Point | None:
    return None if number.low is None or number.high is None else (number.low, number.high)
