"""The gap between the sampler's and the trainer's log-probs over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.base import Estimate
from equipoise.views.figure import Figure, Numbers
from equipoise.views.pick import arm_label, arm_note, arms, main_arm, named, pick
from equipoise.views.style import Trace, axes, digits, digits_of, line, percent, series, strips

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

CURVES = {
    "mismatch_abs_at_step": ("mean gap (nats)", "nats"),
    "mismatch_max_at_step": ("largest gap (nats)", "nats"),
    "mismatch_tail_at_step": ("ratios past 2 (share)", ""),
    "mismatch_logged_at_step": ("mismatch, as logged", ""),
}


def shown(numbers: Numbers) -> list[Estimate]:
    found = pick(numbers, "mismatch_course", *CURVES)
    return [n for name in CURVES for n in named(found, name)]


def draw(estimates: Sequence[Estimate]) -> Plot:
    looks = {arm: series(number) for number, arm in enumerate(arms(estimates))}
    told: set[str] = set()
    parts = []
    for name, (title, unit) in CURVES.items():
        traces: list[Trace] = []
        for arm, held in arms(named(estimates, name)).items():
            label = arm_label(held[0])
            traces += line(held, name=label, look=looks[arm], unit=unit, showlegend=label not in told)
            told.add(label)
        if traces:
            parts.append((axes(title, rangemode="tozero", exponentformat="e"), traces))
    return strips(parts, x="step", height=160 * len(parts) + 120)


def reading(estimates: Sequence[Estimate]) -> str:
    mean = main_arm(named(estimates, "mismatch_abs_at_step"))
    if not mean:
        logged = named(estimates, "mismatch_logged_at_step")
        return (
            f"The trainer logged a mismatch of {digits(logged[0].value)} at step {digits_of(logged[0].at.get('step'))} and "
            f"{digits(logged[-1].value)} at step {digits_of(logged[-1].at.get('step'))}; 0 is none."
        )
    last = mean[-1]
    here = {n.name: n for n in estimates if n.at == last.at}
    said = (
        f"At step {digits_of(last.at.get('step'))} the log-probs differ by {digits(last.value)} nats a token on average"
    )
    if (most := here.get("mismatch_max_at_step")) is not None:
        said += f" and {digits(most.value)} at most"
    if (tail := here.get("mismatch_tail_at_step")) is not None:
        said += f"; {percent(tail.value)} of the tokens have a ratio past a factor of two"
    if len(mean) > 1:
        said += f"; at step {digits_of(mean[0].at.get('step'))} the mean was {digits(mean[0].value)}"
    return f"{said}{arm_note(mean)}."


FIGURE = Figure(
    name="mismatch",
    title="Off-policy mismatch",
    question="Are the curves above trustworthy?",
    needs=("mismatch_course",),
    shown=shown,
    draw=draw,
    reading=reading,
    supply="the log-probs of both the sampler and the trainer (columns logprobs_rollout and logprobs_train)",
)
