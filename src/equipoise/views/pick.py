"""Estimates picked by name and by what they were drawn under: the arms of a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equipoise.base import Estimate
from equipoise.text.display import safe_text
from equipoise.views.figure import Numbers

_CONDITIONS = ("run_id", "split", "strategy", "budget", "temperature", "source")
_ALL = "rollouts"


def pick(numbers: Numbers, measure: str, *names: str) -> list[Estimate]:
    """A measure's estimates of these names that have a value, in the measure's order."""
    return [n for n in numbers.get(measure, ()) if n.name in names and n.value is not None]


def arm_of(number: Estimate) -> tuple[Any, ...]:
    """What an estimate was drawn under; equal for all of one arm."""
    return tuple(number.at.get(name) for name in _CONDITIONS)


def arm_label(number: Estimate) -> str:
    """An arm in a few words: `train`, `test, temperature 0.6`, `trainer's log`."""
    at = number.at
    words = [str(at[name]) for name in ("run_id", "split", "strategy") if at.get(name) is not None]
    words += [f"{name} {at[name]:g}" for name in ("budget", "temperature") if at.get(name) is not None]
    if at.get("source") == "log":
        words.append("trainer's log")
    return safe_text(", ".join(words), 60) or _ALL


def arm_note(shown: Sequence[Estimate]) -> str:
    """For the end of a sentence: which arm it speaks of, where there are several or it is not of the rollouts."""
    label = arm_label(shown[0]) if shown else _ALL
    return "" if label == _ALL else f" ({label})"


def arms(estimates: Sequence[Estimate]) -> dict[tuple[Any, ...], list[Estimate]]:
    """The estimates of every arm, in order of first sight."""
    found: dict[tuple[Any, ...], list[Estimate]] = {}
    for number in estimates:
        found.setdefault(arm_of(number), []).append(number)
    return found


def main_arm(estimates: Sequence[Estimate]) -> list[Estimate]:
    """The arm to show where there is room for one: that of the most steps and, of several, the training rollouts."""
    held = list(arms(estimates).values())
    if not held:
        return []
    return max(held, key=lambda arm: (len({_step(n) for n in arm}), arm[0].at.get("split") == "train"))


def same_arm(estimates: Sequence[Estimate], like: Sequence[Estimate]) -> list[Estimate]:
    """The estimates of the arm that `like` is of."""
    return [number for number in estimates if like and arm_of(number) == arm_of(like[0])]


def named(estimates: Sequence[Estimate], name: str) -> list[Estimate]:
    return [number for number in estimates if number.name == name]


def _step(number: Estimate) -> Any:
    step = number.at.get("step")
    return tuple(step) if isinstance(step, list) else step
