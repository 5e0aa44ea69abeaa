"""Numbers as a sentence tells them: with their interval, in the unit of the sentence."""

from __future__ import annotations

from collections.abc import Callable

from equipoise.base import Estimate
from equipoise.views.conditions import NO_CONDITION, condition_name
from equipoise.views.style import digits, percent


def with_interval(number: Estimate, form: Callable[[float | None], str] = percent) -> str:
    """`55% [46%, 64%]`; the value alone where it has no interval."""
    if number.low is None or number.high is None:
        return form(number.value)
    return f"{form(number.value)} [{form(number.low)}, {form(number.high)}]"


def points(value: float | None) -> str:
    """A difference of shares in percentage points, with its sign."""
    return "–" if value is None else f"{100 * value:+.1f}".replace("-", "−")


def signed(value: float | None) -> str:
    if value is None:
        return "–"
    return ("+" if value > 0 else "−" if value < 0 else "") + digits(abs(value))


def signed_percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:+.0f}%".replace("-", "−")


def in_points(number: Estimate) -> str:
    """`−10.2 points [−15.1, −4.0]`."""
    bounds = "" if number.low is None or number.high is None else f" [{points(number.low)}, {points(number.high)}]"
    return f"{points(number.value)} points{bounds}"


def opening(number: Estimate) -> str:
    """`On test, temperature 1: ` where a sentence is about one of several conditions, else nothing."""
    name = condition_name(number)
    return "" if name == NO_CONDITION else f"On {name}: "


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
