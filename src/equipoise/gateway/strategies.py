"""Which strategies a caller may name, and how wide they may be. Only those of the catalogue: a request never names code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Any

from equipoise.base import Choice, Question
from equipoise.catalogue.build import build, read_spec
from equipoise.catalogue.table import find_method, is_built, methods
from equipoise.errors import UsageError
from equipoise.infer.metered import Metered

Strategy = Callable[[Question, Metered], Awaitable[Choice]]

KINDS = ("strategy", "cap")
WIDTHS = ("n", "cap", "warmup", "turns", "wait")  # settings that say how many completions are drawn
SINGLE = "single"
_COUNTS = (*WIDTHS, "at_once")
MAX_SPEC = 200  # characters


def check_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """The name and settings of a strategy of the catalogue; refused if it is anything else."""
    if len(spec) > MAX_SPEC:
        raise UsageError(f"a strategy is named in {MAX_SPEC} characters or fewer, found {len(spec)}")
    name, settings = read_spec(spec)
    known = strategy_names()
    if name.replace("-", "_") not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UsageError(f"'{name}' is no strategy of this gateway: {hint}known are {', '.join(known)}")
    return name.replace("-", "_"), settings


@cache
def strategy_names() -> tuple[str, ...]:
    return tuple(method.name for method in methods() if method.kind in KINDS and is_built(method))


@lru_cache(maxsize=1024)
def build_strategy(spec: str, *, width: int) -> tuple[Strategy, str, int]:
    """A strategy no wider than `width`, its spec with what was set, and how many completions it draws at most.

    Settings that were asked for above the width are refused; the catalogue's own are lowered to it. Strategies hold no state, so
    that one serves many requests.
    """
    name, asked = check_spec(spec)
    own = find_method(name).settings
    for key, value in asked.items():
        _check_value(name, key, value, own.get(key))
        if key in _COUNTS and isinstance(value, int) and value > width:
            raise UsageError(f"{key}={value} of {name} is more than this gateway draws for an answer: {width} at most")
    lowered = {key: width for key in _COUNTS if key not in asked and isinstance(own.get(key), int) and own[key] > width}
    settings = {**lowered, **asked}
    built: Strategy = build(name, **settings)
    told = name + (":" + ",".join(f"{key}={value}" for key, value in settings.items()) if settings else "")
    return built, told, width_of({**own, **settings})


def _check_value(name: str, key: str, value: Any, own: Any) -> None:
    """The kind of value that the catalogue has there: a caller's mistake is told before anything is drawn."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if key in _COUNTS and not (value is None and key == "at_once"):
        if not whole or value < 0 or (value == 0 and key != "wait"):
            raise UsageError(f"{key} of {name} is a whole number of 1 or more, found {value}")
    elif isinstance(own, bool):
        if not isinstance(value, bool):
            raise UsageError(f"{key} of {name} is true or false, found {value}")
    elif isinstance(own, int | float):
        if isinstance(value, bool) or not isinstance(value, int if isinstance(own, int) else int | float):
            raise UsageError(f"{key} of {name} takes a value such as {own}, found {value}")
    elif isinstance(own, str) and not isinstance(value, str):
        raise UsageError(f"{key} of {name} takes a word such as {own}, found {value}")


def width_of(settings: Mapping[str, Any]) -> int:
    return max([1, *(int(settings[key]) for key in WIDTHS if isinstance(settings.get(key), int))])
