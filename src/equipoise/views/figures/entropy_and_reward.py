"""Entropy and reward over the steps, and the settings that a controller moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from equipoise.base import Estimate
from equipoise.text.display import safe_text
from equipoise.views.figure import Figure, Numbers
from equipoise.views.pick import arm_label, arm_of, arms, main_arm, named, pick
from equipoise.views.plain_text import plotly_text
from equipoise.views.style import Look, Trace, band, digits, digits_of, line, place, series, strips

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Plot

CURVES = {"entropy_at_step": ("entropy (nats/token)", "nats"), "reward_at_step": ("mean reward", "")}
SETTING = "setting_at_step"
MOST_ARMS = 6


def shown(numbers: Numbers) -> list[Estimate]:
    """All curves of up to six arms, those with the most steps; single points only where no arm has a curve."""
    names = [f"{name}{spread}" for name in CURVES for spread in ("", "_p5", "_p95")]
    found = arms(pick(numbers, "course", *names))
    steps = {arm: len({str(n.at.get("step")) for n in held}) for arm, held in found.items()}
    curves = [arm for arm in found if steps[arm] > 1] or list(found)
    kept = sorted(curves, key=lambda arm: -steps[arm])[:MOST_ARMS]
    return [n for arm in found if arm in kept for n in found[arm]] + pick(numbers, "course", SETTING)


def draw(estimates: Sequence[Estimate]) -> Plot:
    measured = [n for n in estimates if n.name != SETTING]
    looks = {arm: series(number) for number, arm in enumerate(arms(measured))}
    parts: list[tuple[str, list[Trace]]] = []
    told: set[str] = set()
    for name, (title, unit) in CURVES.items():
        traces = [
            trace
            for arm, held in arms([n for n in measured if n.name.startswith(name)]).items()
            for trace in _curve(held, name, looks[arm], unit, told)
        ]
        if traces:
            parts.append((title, traces))
    settings = [n for n in estimates if n.name == SETTING]
    keys = list(dict.fromkeys(n.at["setting"] for n in settings))
    moved = [
        trace
        for number, key in enumerate(keys)
        for trace in line([n for n in settings if n.at["setting"] == key], name=key, look=series(len(looks) + number))
    ]
    return strips([*parts, *([("controller's setting", moved)] if moved else [])], x="step")


def _curve(held: list[Estimate], name: str, look: Look, unit: str, told: set[str]) -> list[Trace]:
    """The mean with its interval, and behind it the spread over problems; an arm is named once in the legend."""
    label = arm_label(held[0])
    more: dict[str, Any] = {"showlegend": label not in told}
    told.add(label)
    low, high = named(held, f"{name}_p5"), named(held, f"{name}_p95")
    spread = band(
        [place(n, "step") for n in low],
        [n.value for n in low],
        [n.value for n in high],
        colour=look.colour,
        name=f"{label}: 5–95 % of problems",
        share=0.08,
        legendgroup=plotly_text(label),
        showlegend=bool(more["showlegend"]),
    )
    return [*([spread] if low else []), *line(named(held, name), name=label, look=look, unit=unit, **more)]


def reading(estimates: Sequence[Estimate]) -> str:
    entropy = main_arm(named(estimates, "entropy_at_step"))
    reward = main_arm(named(estimates, "reward_at_step"))
    if entropy and (same := [n for n in named(estimates, "reward_at_step") if arm_of(n) == arm_of(entropy[0])]):
        reward = same
    words = []
    if entropy:
        words.append(f"entropy {_went(entropy)} nats per token")
    if reward:
        words.append(f"the mean reward {_went(reward)}")
    settings = [n for n in estimates if n.name == SETTING]
    for key in dict.fromkeys(n.at["setting"] for n in settings):
        words.append(f"{safe_text(str(key), 40)} {_went([n for n in settings if n.at['setting'] == key])}")
    first = (entropy or reward)[0]
    last = (entropy or reward)[-1]
    when = f"At step {digits_of(first.at.get('step'))}"
    if last is not first:
        when = f"From step {digits_of(first.at.get('step'))} to {digits_of(last.at.get('step'))}"
    return f"{when} ({arm_label(first)}): {', '.join(words)}."


def _went(held: Sequence[Estimate]) -> str:
    first, last = held[0], held[-1]
    assert first.value is not None
    assert last.value is not None
    if first is last:
        return f"was {digits(first.value)}"
    overlap = _overlap(first, last)
    verb = "fell" if last.value < first.value else "rose" if last.value > first.value else "stayed"
    return f"{verb} from {digits(first.value)} to {digits(last.value)}{overlap}"


def _overlap(first: Estimate, last: Estimate) -> str:
    if first.low is None or first.high is None or last.low is None or last.high is None:
        return ""
    return " (their intervals overlap)" if first.low <= last.high and last.low <= first.high else ""


FIGURE = Figure(
    name="entropy_and_reward",
    title="Entropy and reward over steps",
    question="Is exploration being spent, and for what?",
    needs=("course",),
    shown=shown,
    draw=draw,
    reading=reading,
    supply="steps with token entropies and rewards, or the trainer's log",
)
