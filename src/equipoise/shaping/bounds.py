"""Checks and bounds that everything with state shares."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from equipoise.errors import UsageError


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def ordered(name: str, **values: float) -> None:
    """Bounds and what they hold, in order."""
    found = list(values.values())
    if not all(isfinite(value) for value in found) or found != sorted(found):
        seen = ", ".join(f"{key}={value:g}" for key, value in values.items())
        raise UsageError(f"{name} needs {' <= '.join(values)}, found {seen}")


def positive(name: str, **values: float) -> None:
    for key, value in values.items():
        if not (isfinite(value) and value > 0):
            raise UsageError(f"{name} needs {key} above 0, found {value}")


def check_state(name: str, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """A saved state has the keys of the object's own, and no number in it is nan or infinite."""
    if set(state) != set(own):
        raise UsageError(
            f"a state of {name} has {', '.join(sorted(own))}; found {', '.join(sorted(state)) or 'nothing'}"
        )
    for key, value in state.items():
        if isinstance(value, float) and not isfinite(value):
            raise UsageError(f"the state of {name} has {key}={value}: restore one that was saved before it broke")
