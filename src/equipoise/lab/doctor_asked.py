"""What a config asks for, and how each control fares in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from equipoise.catalogue.lint import Lint, lint
from equipoise.catalogue.setup import Setup

State = Literal["live", "risky", "overridden", "inert", "refused"]
_WORST: tuple[State, ...] = ("refused", "inert", "overridden", "risky")


@dataclass(frozen=True, slots=True)
class Asked:
    """Methods with their settings, what the run is like, and what the host's own rules say of the file."""

    host: str
    chosen: Mapping[str, Mapping[str, Any]]
    setup: Setup
    idle: tuple[Lint, ...] = ()  # keys that do nothing
    refused: tuple[tuple[str, str], ...] = ()  # (what, why): the host would stop


@dataclass(frozen=True, slots=True)
class Control:
    """One control of a config: live, or what keeps it from acting."""

    name: str
    state: State
    why: str
    fix: str
    unchecked: tuple[str, ...] = ()  # what would have to be known to check more

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(asked: Asked) -> list[Control]:
    """Every control that was asked for, and every key that does nothing: refused first, then in the file's order."""
    found = list(lint(asked.chosen, asked.setup))
    controls = [Control(what, "refused", why, "") for what, why in asked.refused]
    for name in asked.chosen:
        own = [one for one in found if one.method == name]
        controls.append(control_of(name, own))
    parts = [one for one in found if one.method not in asked.chosen and one.verdict != "unknown"]
    return [*controls, *(control_of(one.method, [one]) for one in (*parts, *asked.idle))]


def control_of(name: str, lints: Iterable[Lint]) -> Control:
    lints = list(lints)
    unchecked = tuple(one.fix for one in lints if one.verdict == "unknown")
    for state in _WORST:
        for one in lints:
            if one.verdict == state:
                return Control(name, state, one.why, one.fix, unchecked)
    return Control(name, "live", "", "", unchecked)
