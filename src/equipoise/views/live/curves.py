"""Logged numbers of one run as curves, each point with the place in the common order of news at which it was learnt."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from equipoise.rollouts.logkeys import BY_K
from equipoise.rollouts.naming import Found, find_names, tool_of
from equipoise.rollouts.readers.curves import STEP_KEYS, scalars_of
from equipoise.rollouts.rows import Warn

MOST_KEYS = 500  # of one run; the rest is said and left out
MOST_STEP = 2**53  # a page counts in doubles

# What the page draws by itself: our names, as `rollouts.logkeys` finds them, and two that only the embedded trainer logs.
ROLES = ("entropy", "reward_mean", "accuracy", "group_zero_std_frac", "all_wrong", "all_right")


class Source(NamedTuple):
    """The logged key that supplies a role. `complement`: the tool logs one minus it."""

    key: str
    complement: bool = False


@dataclass(slots=True)
class Curve:
    """Points in the order in which they were logged; where a step comes twice, the last counts."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    stamps: array[int] = field(default_factory=lambda: array("q"))  # never falling

    def between(self, after: int, until: int) -> tuple[list[int], list[float]]:
        """Steps and values that were stamped in (after, until]."""
        piece = slice(bisect_right(self.stamps, after), bisect_right(self.stamps, until))
        return self.steps[piece].tolist(), self.values[piece].tolist()

    def drop_after(self, step: int) -> None:
        kept = [i for i, at in enumerate(self.steps) if at <= step]
        if len(kept) < len(self.steps):
            self.steps = array("q", (self.steps[i] for i in kept))
            self.values = array("d", (self.values[i] for i in kept))
            self.stamps = array("q", (self.stamps[i] for i in kept))


class Curves:
    """All curves of one run, by the key under which they were logged; and which of them plays which role."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn
        self.clear()

    def clear(self) -> None:
        self.by_key: dict[str, Curve] = {}
        self.sources: dict[str, Source] = {}
        self.last: int | None = None
        self.latest: dict[int, dict[str, float]] = {}  # the numbers of the last steps, for what needs several at once

    def add(self, line: Mapping[str, Any], stamp: int) -> bool:
        """Take a line of the log; True where it takes back what came before, so that all must be told anew."""
        rewind = line.get("rewind")
        if isinstance(rewind, int) and not isinstance(rewind, bool):
            self._rewind(rewind)
            return True
        scalars = scalars_of(line)
        at = next((scalars.pop(key) for key in STEP_KEYS if key in scalars), None)
        if at is None or at != int(at) or abs(at) >= MOST_STEP:
            self._warn("no-step", "a line without a whole step was skipped")
            return False
        step = int(at)
        self.last = step if self.last is None else max(self.last, step)
        for key, value in scalars.items():
            curve = self.by_key.get(key)
            if curve is None:
                if len(self.by_key) >= MOST_KEYS:
                    self._warn("many-keys", f"more than {MOST_KEYS} metrics: the others are not followed")
                    continue
                curve = self.by_key[key] = Curve()
            curve.steps.append(step)
            curve.values.append(value)
            curve.stamps.append(stamp)
        self.latest.setdefault(step, {}).update(scalars)
        while len(self.latest) > 64:
            del self.latest[min(self.latest)]
        return False

    def _rewind(self, step: int) -> None:
        for curve in self.by_key.values():
            curve.drop_after(step)
        self.by_key = {key: curve for key, curve in self.by_key.items() if curve.steps}
        self.latest = {at: scalars for at, scalars in self.latest.items() if at <= step}
        self.last = max((max(curve.steps) for curve in self.by_key.values()), default=None)

    def restamp(self, stamp: int) -> None:
        for curve in self.by_key.values():
            curve.stamps = array("q", [stamp]) * len(curve.stamps)

    def assign_roles(self, since: int) -> bool:
        """Find each role's key among those logged so far; True where points stamped before `since` change their role."""
        before, self.sources = self.sources, dict(_roles(frozenset(self.by_key)))
        changed = [role for role in before.keys() | self.sources.keys() if before.get(role) != self.sources.get(role)]
        return any(role in before or self.by_key[self.sources[role].key].stamps[0] < since for role in changed)

    def of_role(self, role: str, after: int = -1, until: int = MOST_STEP) -> tuple[list[int], list[float]]:
        source = self.sources.get(role)
        if source is None:
            return [], []
        steps, values = self.by_key[source.key].between(after, until)
        return steps, [1 - value for value in values] if source.complement else values

    def passes(self) -> list[int]:
        """The k of every pass@k that is logged."""
        return sorted(int(role.removeprefix("pass@")) for role in self.sources if role.startswith("pass@"))


@lru_cache(maxsize=256)  # runs of one trainer log the same keys
def _roles(keys: frozenset[str]) -> Mapping[str, Source]:
    roles: dict[str, Source] = {name: Source(name) for name in ("all_wrong", "all_right") if name in keys}
    for found in find_names(keys, tool_of(keys)):
        roles |= dict(_named(found))
    return roles


def _named(found: Found) -> Iterator[tuple[str, Source]]:
    if found.row.name == "pass_at_k":
        yield from ((f"pass@{k}", Source(key)) for k, key in found.keys.items())
    elif found.label in ROLES and found.row.name not in BY_K:
        yield found.label, Source(found.keys[None], found.row.complement)


def shared_pass(runs: Iterable[Iterable[int]]) -> int | None:
    """The largest k > 1 that most runs with a pass@k have: what they can be compared at."""
    counts = Counter(k for ks in runs for k in ks if k > 1)
    return max(counts, key=lambda k: (counts[k], k), default=None)
