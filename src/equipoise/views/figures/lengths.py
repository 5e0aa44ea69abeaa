"""Tokens of right and of wrong rollouts, and the share that the length limit cuts off over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.views.conditions import by_condition, condition_name
from equipoise.views.figure import Figure, Numbers
from equipoise.views.panels import panels
from equipoise.views.style import LOOKS, Look, Trace, axes, digits, line
from equipoise.views.words import opening, sentence, signed, with_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

CUT = "truncated"


def shown(numbers: Numbers) -> list[Estimate]:
    """One condition's histograms and means; then the truncated share over the training steps, recorded and logged."""
    groups = by_condition(numbers.get("lengths", ()), most=1)
    over = [n for n in numbers.get("health_steps", ()) if n.name == CUT and n.value is not None]
    trained = [n for n in over if n.at.get("split") == "train"]
    recorded = by_condition(trained or [n for n in over if n.at.get("source") != "log"], most=1)
    logged = [n for n in over if n.at.get("source") == "log"]
    picked = [*(groups[0] if groups else []), *(recorded[0] if recorded else []), *logged]
    return picked if any(n.name == "length_share" or _over_steps(n) for n in picked) else []


def _over_steps(number: Estimate) -> bool:
    return number.name == CUT and number.at.get("window") is None and "step" in number.at


def draw(estimates: Sequence[Estimate]) -> Plot:
    histogram: list[Trace] = []
    for verdict in ("right", "wrong"):
        mine = [n for n in estimates if n.name == "length_share" and n.at["verdict"] == verdict]
        if mine:
            histogram += line(mine, "tokens", name=f"{verdict} rollouts", look=LOOKS[verdict])
    steps: list[Trace] = []
    for log in (False, True):
        mine = [n for n in estimates if _over_steps(n) and (n.at.get("source") == "log") == log]
        if mine:
            look = Look(LOOKS["trained"].colour, "dot", "circle-open") if log else LOOKS["trained"]
            which = "logged" if log else condition_name(mine[0])
            steps += line(mine, "step", name=f"cut at the limit, {which}", look=look)
    bins = [n.at["tokens"] for n in estimates if n.name == "length_share"]
    log_bins = bool(bins) and bins[-1][1] - bins[-1][0] > 4 * max(1, bins[0][1] - bins[0][0])
    x = axes("tokens of a rollout (log scale)", type="log") if log_bins else axes("tokens of a rollout")
    share = {"tickformat": ".0%", "rangemode": "tozero"}
    parts = [
        (x, axes("share of the rollouts of that verdict", **share), histogram),
        (axes("step"), axes("share cut off", **share), steps),
    ]
    kept = [(part, tall) for part, tall in zip(parts, (300, 180), strict=True) if part[2]]
    return panels([part for part, _ in kept], tall=[tall for _, tall in kept])


def reading(estimates: Sequence[Estimate]) -> str:
    found = {n.name: n for n in estimates if n.name != "length_share" and not _over_steps(n)}
    words = []
    if "length_right" in found and "length_wrong" in found:
        right, wrong = (with_interval(found[f"length_{each}"], digits) for each in ("right", "wrong"))
        words.append(f"right rollouts have {right} tokens and wrong ones {wrong}")
        if "length_wrong_minus_right" in found:
            more = with_interval(found["length_wrong_minus_right"], signed)
            words.append(f"on one problem the wrong ones differ by {more}")
    cut = found.get(CUT)
    if cut is not None:
        words.append(f"{with_interval(cut)} are cut at the length limit")
        if "accuracy_truncated" in found:
            words[-1] += f", of which {with_interval(found['accuracy_truncated'])} are right"
            if "accuracy_finished" in found:
                words[-1] += f" against {with_interval(found['accuracy_finished'])} of the others"
    over = [n for n in estimates if _over_steps(n)]
    if cut is None and over:
        words.append(f"{with_interval(over[-1])} are cut at the length limit in the last step")
    return sentence(opening(estimates[0]) + "; ".join(words))


FIGURE = Figure(
    "lengths",
    "Length and truncation",
    "Is the budget cutting off correct answers?",
    ("lengths", "health_steps"),
    shown,
    draw,
    reading,
    "the number of tokens of every rollout and why it ended (columns n_tokens, finish_reason)",
)
