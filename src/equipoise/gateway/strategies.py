"""Which strategies a caller may name, and how wide they may be. Only those of the catalogue: a request never names code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from difflib import get_close_matches
from functools import cache, lru_cache
from math import prod
from typing import Any

from equipoise.base import Choice, Question
from equipoise.catalogue.build import build, read_spec
from equipoise.catalogue.table import find_method, is_built, methods
from equipoise.errors import UsageError
from equipoise.infer.metered import Metered

Strategy = Callable[[Question, Metered], Awaitable[Choice]]

KINDS = ("strategy", "cap")
WIDTHS = ("n", "cap", "warmup", "turns", "wait")  # settings that say how many completions are drawn
# Others by which the cost is multiplied: rounds of steps, roll-outs of a step, calls of tools, trial answers, what evolution has many of.
TIMES = ("rounds", "rollouts", "calls", "probes", "generations", "islands", "conversations", "retries")
# Those that multiply each other: each alone within the width, they could still ask for its square, or its fifth power.
TOGETHER = (
    ("n", "rounds", "rollouts"),
    ("calls", "probes"),
    ("generations", "islands", "conversations", "turns", "retries"),
)
# Tokens of a reply that is no completion of the question's: a rating, a critique, a trial answer.
TOKENS = ("answer", "judge_tokens", "critic_tokens", "selector_tokens", "probe_tokens")
SINGLE = "single"
_COUNTS = (*WIDTHS, *TIMES, "at_once")
_MAY_BE_0 = ("wait", "calls", "probes", "retries")
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
def build_strategy(spec: str, *, width: int, tokens: int) -> tuple[Strategy, str, int]:
    """A strategy no wider than `width`, its spec with what was set, and how many completions it draws at most.

    Settings that were asked for above the width are refused; the catalogue's own are lowered to it. So are those above `tokens`, which
    say how long a rating, a critique or a trial answer may be. Strategies hold no state, so that one serves many requests.
    """
    name, asked = check_spec(spec)
    own = find_method(name).settings
    most = dict.fromkeys(_COUNTS, width) | dict.fromkeys(TOKENS, tokens)
    for key, value in asked.items():
        _check_value(name, key, value, own.get(key))
        if key in most and isinstance(value, int) and value > most[key]:
            what = "draws for an answer" if key in _COUNTS else "allows for a completion"
            raise UsageError(f"{key}={value} of {name} is more than this gateway {what}: {most[key]} at most")
    lowered = {k: top for k, top in most.items() if k not in asked and isinstance(own.get(k), int) and own[k] > top}
    settings = {**lowered, **asked}
    built: Strategy = build(name, **settings)
    _check_together(name, {**own, **settings}, {**own, **lowered}, width)
    told = name + (":" + ",".join(f"{key}={value}" for key, value in settings.items()) if settings else "")
    return built, told, width_of({**own, **settings})


def _check_together(name: str, settings: Mapping[str, Any], own: Mapping[str, Any], width: int) -> None:
    """Settings that multiply each other come to no more than the width, or than the catalogue's own come to."""
    for group in TOGETHER:
        keys = [key for key in group if isinstance(settings.get(key), int)]
        if len(keys) < 2 or ("rollouts" in keys and settings.get("by") != "rollouts"):
            continue
        product = prod(max(1, settings[key]) for key in keys)
        most = max(width, prod(max(1, own[key]) for key in keys if key in own))
        if product > most:
            told = " × ".join(f"{key}={settings[key]}" for key in keys)
            raise UsageError(
                f"{told} of {name} are {product:,}, more than this gateway draws for an answer: {most:,} at most"
            )
    if {"every", "probe_tokens"} <= set(own) and settings["every"] < settings["probe_tokens"]:
        raise UsageError(
            f"every={settings['every']} of {name} is less than its probe_tokens={settings['probe_tokens']}: trial answers would cost "
            "more than the traces"
        )


def _check_value(name: str, key: str, value: Any, own: Any) -> None:
    """The kind of value that the catalogue has there: a caller's mistake is told before anything is drawn."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if key in _COUNTS and not (value is None and key == "at_once"):
        least = 0 if key in _MAY_BE_0 else 1
        if not whole or value < least:
            raise UsageError(f"{key} of {name} is a whole number of {least} or more, found {value}")
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
