"""Estimates by what they were drawn under: which belong together, which come first, what they are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from equipoise.base import Estimate
from equipoise.diagnosis.judge import preference
from equipoise.views.pick import arm_label

CONDITIONS = ("run_id", "split", "strategy", "temperature", "budget")
NO_CONDITION = "rollouts"  # as `arm_label` calls what nothing tells apart

Condition = tuple[tuple[str, object], ...]


def condition_of(number: Estimate) -> Condition:
    return tuple((name, number.at[name]) for name in CONDITIONS if name in number.at)


def is_late(number: Estimate) -> bool:
    """Of the last steps, or of a run without steps; no comparison."""
    return number.at.get("window") in (None, "late") and "against" not in number.at


def condition_name(number: Estimate, *, without: Sequence[str] = ()) -> str:
    """As `arm_label`, leaving out the conditions that are an axis of the figure, and the confidence that a number is about."""
    kept = {name: value for name, value in condition_of(number) if name not in without}
    return arm_label(replace(number, at=kept))


def by_condition(estimates: Iterable[Estimate], *, most: int | None = None) -> list[list[Estimate]]:
    """Those with a value, grouped by condition, the most telling first, as a diagnosis chooses: no point of a budget sweep, an
    evaluation before training, most problems; of a sweep the largest budget. `most`: how many groups."""
    groups: dict[Condition, list[Estimate]] = {}
    for number in estimates:
        if number.value is not None:
            groups.setdefault(condition_of(number), []).append(number)
    ordered = sorted(
        groups.values(), key=lambda group: (min(map(preference, group)), -(group[0].at.get("budget") or 0.0))
    )
    return ordered if most is None else ordered[:most]
