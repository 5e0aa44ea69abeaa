"""Estimates as tables: one for each condition, with what they have in common said once above it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from equipoise.base import Estimate
from equipoise.cli.show import console
from equipoise.text.display import safe_text

MOST_ALIKE = 20  # rows of one name in one table: tokens and positions can be many
_HEADING = ("run_id", "split", "strategy", "temperature", "problems", "source")
_COLUMNS = ("measure", "at", "value", "95% interval", "n")
_RIGHT = ("value", "n")
_SMALLEST = 6  # decimals: below, numbers are written with an exponent


def print_estimates(estimates: Iterable[Estimate]) -> None:
    """Tables of numbers with their intervals; what could not be measured follows, with what would supply it."""
    rows = list(estimates)
    groups: dict[str, list[Estimate]] = {}
    for row in rows:
        if row.value is not None:
            groups.setdefault(_heading(row), []).append(row)
    tables = {heading: _cells(held) for heading, held in groups.items()}
    every = [cells for table in tables.values() for cells in table]
    widths = [max(map(cell_len, column)) for column in zip(_COLUMNS, *every, strict=True)]
    if not any(cells[1] for cells in every):
        widths[1] = 0
    out = console()
    for number, (heading, held) in enumerate(groups.items()):
        if number:
            out.print()
        legend = "  ".join(part for part in (heading, _windows(held)) if part)
        if legend:
            out.print(Text(legend, style="bold"))
        out.print(_line(_COLUMNS, widths, style="dim"))
        for cells in tables[heading]:
            out.print(_line(cells, widths))
        if _hidden(held):
            out.print(Text(f"… and {_hidden(held)} more of the same; --json has them all", style="dim"))
    for row in rows:
        if row.value is None:
            where = ", ".join(part for part in (_heading(row), _at(row)) if part)
            reason = f"needs {row.missing}" if row.missing else row.how
            named = f"{row.name} ({where})" if where else row.name
            out.print(Text(safe_text(f"{named} not measured: {reason}", 400)))


def _heading(row: Estimate) -> str:
    words = [_said(key, row.at[key]) for key in _HEADING if key in row.at]
    if "budget" in row.at and row.at["budget"] is None:
        words.append("no budget")
    return safe_text(", ".join(words), 120)


def _windows(rows: Sequence[Estimate]) -> str:
    """Which steps "late" and "early" are."""
    steps = {
        row.at["window"]: row.at["step"]
        for row in rows
        if row.at.get("step") and row.at.get("window") not in (None, "change")
    }
    return ", ".join(f"{window}: {_steps(step)}" for window, step in steps.items())


def _steps(step: Any) -> str:
    first, last = step if isinstance(step, list | tuple) else (step, step)
    return f"step {first}" if first == last else f"steps {first}–{last}"


def _at(row: Estimate) -> str:
    """What sets a row apart from its neighbours: no condition of the heading, nothing that its name says already."""
    said = {*_HEADING, "window", *(key for key, value in row.at.items() if value is None)}
    if "window" in row.at:  # its steps stand above the table
        said.add("step")
    if "k" in row.at and re.search(rf"[@^]{row.at['k']}(?!\d)", row.name):
        said.add("k")
    if row.at.get("against") == "baseline" and "_vs_baseline" in row.name:
        said.add("against")
    if row.at.get("tokens") == row.at.get("budget"):
        said.add("tokens")
    if str(row.at.get("id")) == str(row.at.get("token")):
        said.add("id")
    if row.at.get("count") == row.n:
        said.add("count")
    window = row.at.get("window")
    words = [] if window in (None, "change") or "_vs_baseline" in row.name else [str(window)]
    words += [_said(key, value) for key, value in row.at.items() if key not in said]
    return safe_text(", ".join(words), 80)


def _said(key: str, value: Any) -> str:
    if key == "problems":
        return f"{value} problems"
    name = "run" if key == "run_id" else key.replace("_", " ")
    if value is None:
        return f"no {name}"
    if isinstance(value, list | tuple):
        return f"{name} {'–'.join(map(str, value))}"
    return f"{name} {value:,g}" if isinstance(value, float) else f"{name} {value}"


def _cells(rows: Sequence[Estimate]) -> list[tuple[str, ...]]:
    seen: dict[str, int] = {}
    table: list[tuple[str, ...]] = []
    for row in rows:
        seen[row.name] = seen.get(row.name, 0) + 1
        if seen[row.name] <= MOST_ALIKE:
            n = "–" if row.n is None else f"{row.n:,}"
            table.append((safe_text(row.name, 60), _at(row), *_numbers(row), n))
    return table


def _hidden(rows: Sequence[Estimate]) -> int:
    names = [row.name for row in rows]
    return sum(max(0, names.count(name) - MOST_ALIKE) for name in set(names))


def _numbers(row: Estimate) -> tuple[str, str]:
    """(value, interval), with the digits that the interval's width supports; a relative change in percent."""
    assert row.value is not None
    times, unit = (100.0, "%") if row.name.endswith("_rel") else (1.0, "")
    signed = any(word in row.name for word in ("_change", "_vs_baseline", "_rel"))
    value = times * row.value
    if row.low is None or row.high is None:
        return _written(value, f"{'+' if signed else ''},.{3 if unit else 4}g") + unit, "no interval"
    low, high = times * row.low, times * row.high
    decimals = 1 - math.floor(math.log10((high - low) / 2)) if high > low else 4
    form = f"{'+' if signed else ''},.3g" if decimals > _SMALLEST else f"{'+' if signed else ''},.{max(0, decimals)}f"
    return _written(value, form) + unit, f"[{_written(low, form)}{unit}, {_written(high, form)}{unit}]"


def _written(value: float, form: str) -> str:
    text = format(value, form)
    return (
        text if any(digit in text for digit in "123456789") else text.lstrip("+-")
    )  # what rounds to nothing has no sign


def _line(cells: Sequence[str], widths: Sequence[int], style: str = "") -> Text:
    padded = []
    for cell, width, column in zip(cells, widths, _COLUMNS, strict=True):
        if width:
            gap = " " * (width - cell_len(cell))
            padded.append(gap + cell if column in _RIGHT else cell + gap)
    return Text("  ".join(padded).rstrip(), style=style)
