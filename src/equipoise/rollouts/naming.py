"""From a file's own keys to our names: which tool wrote it, and which of its keys supplies what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from equipoise.rollouts.logkeys import BY_K, KEYS, MARKERS, LogKey, Split

ENTROPY_FACTS = ("estimator", "temperature", "aggregation", "mask")


@dataclass(frozen=True, slots=True)
class Found:
    """The key that supplies one of our names in one split; for pass@k and maj@k one key per k."""

    row: LogKey
    keys: Mapping[int | None, str]  # k → key; the k of a plain number is None
    others: tuple[str, ...]  # further keys of this file for the same name

    @property
    def label(self) -> str:
        """The name in `provenance`. pass@k and maj@k stand at the top whatever their split."""
        evaluated = self.row.split == "eval" and self.row.name not in BY_K
        return f"eval/{self.row.name}" if evaluated else self.row.name

    def value(self, scalars: Mapping[str, float]) -> Any:
        """A number, or {k: number}; None where this step has none."""
        if self.row.name in BY_K:
            return {k: scalars[key] for k, key in self.keys.items() if key in scalars} or None
        number = scalars.get(self.keys[None])
        return 1 - number if self.row.complement and number is not None else number

    def provenance(self) -> dict[str, Any]:
        """What is known of the number; None is unknown."""
        facts = dict.fromkeys(ENTROPY_FACTS if self.row.name == "entropy" else ("estimator",))
        key = dict(self.keys) if self.row.name in BY_K else self.keys[None]
        origin = {"key": key, "tool": self.row.tool, "split": self.row.split}
        return origin | facts | dict(self.row.how) | {"others": list(self.others)}


def tool_of(keys: Iterable[str]) -> str | None:
    """The tool with most of its markers among these keys. None: no marker, or a tie. Ours counts only when alone."""
    keys = list(keys)
    seen = {tool: sum(any(_match(m, key) for key in keys) for m in markers) for tool, markers in MARKERS.items()}
    most = max(seen.values())
    leading = [tool for tool, count in seen.items() if count == most]
    if not most:
        return "equipoise" if any(key.startswith("explore/") for key in keys) else None
    return leading[0] if len(leading) == 1 else None


def find_names(keys: Iterable[str], tool: str | None) -> list[Found]:
    """Which key supplies which of our names: first our own `explore/…`, then the tool's, then plain column names."""
    keys = sorted(set(keys))
    order = ("equipoise", tool, None) if tool is not None else ("equipoise", None)
    found: dict[tuple[str, Split | None], list[tuple[LogKey, dict[int | None, str]]]] = {}
    for row in (row for wanted in dict.fromkeys(order) for row in KEYS if row.tool == wanted):
        for series in _series(row, keys):
            # pass@k is an evaluation's number where there is one, so its splits compete; other names keep both.
            found.setdefault((row.name, None if row.name in BY_K else row.split), []).append((row, series))
    return [_choose(candidates) for candidates in found.values()]


def _series(row: LogKey, keys: list[str]) -> list[dict[int | None, str]]:
    """The row's keys in this file, one series per data source."""
    sources: dict[str, dict[int | None, str]] = {}
    for key in keys:
        if match := _match(row.key, key):
            k = int(match["k"]) if row.name in BY_K else None
            sources.setdefault(match.groupdict().get("source") or "", {})[k] = key
    return list(sources.values())


def _choose(candidates: list[tuple[LogKey, dict[int | None, str]]]) -> Found:
    row, chosen = min(candidates, key=lambda c: c[0].name in BY_K and c[0].split != "eval")  # stable: else the first
    if row.name in BY_K:  # verl spreads one series over val-core and val-aux; never mix two sources or two scores
        one = _kind(row, chosen)
        for other, series in candidates:
            if _kind(other, series) == one:
                chosen = series | chosen
    rest = {key for _, series in candidates for key in series.values()} - set(chosen.values())
    return Found(row, dict(sorted(chosen.items(), key=lambda item: item[0] or 0)), tuple(sorted(rest)))


def _kind(row: LogKey, series: Mapping[int | None, str]) -> tuple[Any, ...]:
    match = _match(row.key, next(iter(series.values())))
    return row.tool, row.split, row.how, None if match is None else match.groupdict().get("source")


def _match(template: str, key: str) -> re.Match[str] | None:
    return _pattern(template).fullmatch(key)


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """`<k>` is a number and any other placeholder a stretch of text, each kept under its name."""
    parts = re.split(r"<(\w+)>", template)
    text = [re.escape(part) for part in parts[::2]]
    holes = [rf"(?P<{name}>\d{{1,6}})" if name in ("k", "n") else rf"(?P<{name}>.+?)" for name in parts[1::2]]
    return re.compile("".join(part for pair in zip(text, [*holes, ""], strict=True) for part in pair))
