"""Training curves: one row of scalars per step, from metrics JSON lines, trainer_state.json, CSV or TensorBoard events.

| source | recognised by |
| --- | --- |
| metrics JSON lines: `{"step": …, "key": …}`, or verl's `{"step": …, "data": {…}}` | a known key and no text of a rollout |
| Hugging Face `trainer_state.json` | `log_history` |
| CSV: plain, or a W&B export (`Step`, `run - key`; its `__MIN` and `__MAX` columns are left out) | a known column |
| TensorBoard event files, or a folder of them | the checksum of the first record |

Each step becomes {"step", our names (`logkeys.NAMES`), "eval": {our names}, "raw": {key: every scalar as logged}}.
A name is absent at a step where it was not logged. `provenance` says which key supplied each name and how its tool
made it; where the tool is not known, neither is the estimator. Rows of one step are joined: trainers log
training and evaluation apart. If a key comes twice in one step, as after a resume, the last value counts.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError, unknown_name
from equipoise.files import open_bytes, read_json, read_json_lines
from equipoise.rollouts.logkeys import BY_K, NAMES, LogKey
from equipoise.rollouts.naming import Found, find_names, tool_of
from equipoise.rollouts.readers.foreign import files_in, first_bytes, first_object
from equipoise.rollouts.rows import Warn
from equipoise.rollouts.run import Run, RunInfo, Warnings
from equipoise.rollouts.tfevents import looks_like_events, read_scalars

MAX_VALUES = 20_000_000  # scalars of one file; all steps are held at once, to sort and join them
MAX_LINE = 1024 * 1024  # characters of a CSV line; a longer one comes in pieces, which do not fit the header

# W&B's own counters come last: they count log calls, not optimiser steps.
STEP_KEYS = (
    *("step", "global_step", "train/global_step", "training/global_step", "trainer/global_step", "iteration"),
    *("Step", "_step"),
)
# Keys of a row that is one completion, not one step.
ROLLOUT_KEYS = {
    *("prompt", "completion", "completions", "answer", "response", "responses", "messages", "question", "problem"),
    *("input", "inputs", "output", "outputs", "token_ids", "sample_index", "uid", "doc", "resps", "text"),
    *("sample_idx", "prompt_idx", "prompt_tokens", "response_tokens"),
}
_CONTAINERS = ("data", "metrics", "raw")  # objects whose keys are the metrics themselves


@dataclass(frozen=True, slots=True)
class Curves:
    """The steps of a run in order, the tool that wrote them (None: not known), and where each name comes from."""

    steps: list[dict[str, Any]]
    tool: str | None
    provenance: dict[str, Any]


@dataclass(slots=True)
class _Row:
    scalars: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def claims(path: Path) -> bool:
    if path.is_dir():
        return bool(_event_files(path))
    if looks_like_events(first_bytes(path, 12)):
        return True
    if path.suffix == ".json":
        return b'"log_history"' in first_bytes(path, 64 * 1024)
    return _is_curve(_first_keys(path))


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    """The run's metrics. `columns` names the source's key for one of our names, or for `step`."""
    warnings = Warnings()
    curves = metrics_of_rows(_rows(path, warnings), warn=warnings, columns=columns)
    if not curves.provenance:
        seen = sorted({key for step in curves.steps for key in step["raw"]})
        shown = f"its keys are {', '.join(seen[:8])}" if seen else "it has no numbers"
        raise UsageError(f"{path} holds no metric known here: {shown}; name one with columns={{'entropy': '…'}}")
    info = RunInfo(source=curves.tool or "unknown", run_id=path.stem, provenance=curves.provenance)
    return Run(path, info, read_metrics=lambda: (dict(step) for step in curves.steps), warnings=warnings)


def metrics_of_rows(
    rows: Iterable[Mapping[str, Any]], *, warn: Warn, tool: str | None = None, columns: Mapping[str, str] | None = None
) -> Curves:
    """Curves of logged rows, whose numbers may be nested. Without `tool`, the keys tell it where they can."""
    flat = _flattened(rows)
    chosen = _check_columns(columns)
    steps = _joined(flat, chosen.pop("step", None), warn)
    keys = {key for scalars in steps.values() for key in scalars}
    tool = tool or tool_of(keys)
    found = {found.label: found for found in find_names(keys, tool)}
    for name, key in chosen.items():
        if key not in keys:
            raise unknown_name(f"key for {name}", key, keys)
        found[name] = Found(LogKey(name, None, key), {None: key}, ())
    named = [{"step": step} | _named(scalars, found) | {"raw": scalars} for step, scalars in sorted(steps.items())]
    return Curves(named, tool, {label: entry.provenance() for label, entry in sorted(found.items())})


def _check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    known = {"step", *NAMES} - set(BY_K)
    for name in columns or {}:
        if name not in known:
            raise unknown_name("metric", name, known)
    return dict(columns or {})


def _named(scalars: Mapping[str, float], found: Mapping[str, Found]) -> dict[str, Any]:
    values = {label: entry.value(scalars) for label, entry in found.items()}
    known = {label: value for label, value in values.items() if value is not None}
    evaluated = {label.removeprefix("eval/"): value for label, value in known.items() if label.startswith("eval/")}
    trained = {label: value for label, value in known.items() if not label.startswith("eval/")}
    return trained | ({"eval": evaluated} if evaluated else {})


def _flattened(rows: Iterable[Mapping[str, Any]]) -> list[_Row]:
    flat, values = [], 0
    for row in rows:
        one = _Row()
        _flatten(row, "", one)
        values += len(one.scalars)
        if values > MAX_VALUES:
            raise UsageError(f"more than {MAX_VALUES:,} logged values: keep fewer keys, or every tenth step")
        if one.scalars:
            flat.append(one)
    return flat


def scalars_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of one logged row, those of nested objects under joined names."""
    flat = _Row()
    _flatten(row, "", flat)
    return flat.scalars


def _flatten(value: Mapping[str, Any], prefix: str, into: _Row) -> None:
    for key, item in value.items():
        name = f"{prefix}{key}"
        if (number := _number(item)) is not None:
            into.scalars[name] = number
        elif isinstance(item, str) and item.strip() and len(item) < 200:
            into.texts[name] = item
        elif isinstance(item, Mapping):
            _flatten(item, "" if not prefix and key in _CONTAINERS else f"{name}/", into)


def _number(value: Any) -> float | None:
    """A finite number, also as text; nan and infinities were not measured."""
    if type(value) is not float:  # nearly all are: the check keeps long logs fast
        if isinstance(value, bool) or not isinstance(value, int | str):
            return None
        try:
            value = float(value)
        except (ValueError, OverflowError):
            return None
    return value if math.isfinite(value) else None


def _joined(rows: list[_Row], step_key: str | None, warn: Warn) -> dict[int, dict[str, float]]:
    """The rows by step, those of one step joined."""
    key = step_key or next((k for k in STEP_KEYS if 2 * sum(k in row.scalars for row in rows) > len(rows)), None)
    if step_key is not None and not any(step_key in row.scalars for row in rows):
        raise unknown_name("key for step", step_key, {k for row in rows for k in row.scalars})
    if key is None and rows:
        warn("no-step", "no step column: rows are numbered from 1")
    steps: dict[int, dict[str, float]] = {}
    kept: list[tuple[int, _Row]] = []
    repeated: set[int] = set()
    for number, row in enumerate(rows, start=1):
        at = float(number) if key is None else row.scalars.pop(key, None)
        if at is None or at != int(at):
            warn("bad-step", f"rows without a whole number in '{key}' were skipped")
            continue
        step = int(at)
        if kept and step < kept[-1][0]:
            warn("unordered-steps", f"step {step} comes after step {kept[-1][0]}: steps were sorted")
        kept.append((step, row))
        held = steps.setdefault(step, {})
        if not row.scalars.keys().isdisjoint(held.keys() - {"epoch"}):
            repeated.add(step)
        held |= row.scalars
    if repeated:
        _refuse_several_runs(kept)
        warn(
            "duplicate-step", f"{len(repeated)} steps were logged twice (first: {min(repeated)}): the last values count"
        )
    return steps


def _refuse_several_runs(rows: list[tuple[int, _Row]]) -> None:
    """A text column names runs if it explains most repeats of a step and is no time stamp: joining those would be wrong."""
    distinct = len({step for step, _ in rows})
    for column in sorted({key for _, row in rows for key in row.texts}):
        runs = sorted({row.texts.get(column, "") for _, row in rows})
        apart = len({(step, row.texts.get(column)) for step, row in rows})
        if 2 * (apart - distinct) >= len(rows) - distinct and len(runs) <= len(rows) // 2:
            shown = ", ".join(runs[:4]) + (", …" if len(runs) > 4 else "")
            raise UsageError(f"several runs in one file ('{column}' is {shown}): give one file per run")


def _rows(path: Path, warn: Warn) -> Iterator[Mapping[str, Any]]:
    if path.is_dir():
        files = _event_files(path)
        folders = sorted({str(file.parent.relative_to(path)) for file in files})
        if len(folders) != 1:
            found = f"event files of {len(folders)} runs ({', '.join(folders[:4])})" if folders else "no event files"
            raise UsageError(f"{path} holds {found}: give the folder of one run")
        for file in files:
            yield from _event_rows(file, warn)
    elif looks_like_events(first_bytes(path, 12)):
        yield from _event_rows(path, warn)
    elif path.suffix == ".json":
        state = read_json(path)
        history = state.get("log_history") if isinstance(state, dict) else None
        if not isinstance(history, list):
            raise UsageError(f"{path} has no log_history: give a trainer_state.json, or metrics as JSON lines")
        yield from (row for row in history if isinstance(row, dict))
    elif _starts_with_brace(path):
        yield from (row for _, row in read_json_lines(path, warn=warn))
    else:
        yield from _csv_rows(path, warn)


def _event_files(folder: Path) -> list[Path]:
    """Event files in the folder, else one or two below; in order of their names, which hold the time of creation."""
    for pattern in ("*tfevents*", "*/*tfevents*", "*/*/*tfevents*"):
        if files := files_in(folder, pattern):
            return files
    return []


def _event_rows(path: Path, warn: Warn) -> Iterator[dict[str, Any]]:
    for scalar in read_scalars(path, warn=warn):
        yield {"step": scalar.step, "data": {scalar.tag: scalar.value}}


def _csv_rows(path: Path, warn: Warn) -> Iterator[dict[str, str]]:
    with open_bytes(path) as handle:
        text = io.TextIOWrapper(handle, encoding="utf-8-sig", errors="replace", newline="")
        lines = iter(lambda: text.readline(MAX_LINE), "")
        try:
            header = next(lines, "")
            reader = csv.reader(chain([header], lines), delimiter=_delimiter(header))
            names = _columns(next(reader, []), warn)
            for cells in reader:
                if len(cells) == len(names):
                    yield {name: cell for name, cell in zip(names, cells, strict=True) if name is not None}
                elif cells:
                    told = f"line {reader.line_num} has {len(cells)} of {len(names)} cells"
                    warn("bad-line", f"{path.name}: {told} and was skipped")
        except (EOFError, gzip.BadGzipFile, zlib.error):
            warn("truncated", f"{path.name}: the gzip stream ends early; the lines before are used")
        except csv.Error as problem:
            raise UsageError(f"{path} is not a readable CSV: {problem}") from problem


def _columns(header: list[str], warn: Warn) -> list[str | None]:
    """The key of each column; None where a column is not read. A W&B export names them `run - key`."""
    header = [name.strip() for name in header]
    if len(header) < 2 or not all(" - " in name for name in header[1:]):
        return list(header)
    runs = list(dict.fromkeys(name.rsplit(" - ", 1)[0] for name in header[1:]))
    if len(runs) > 1:
        warn("several-runs", f"columns of {len(runs)} runs: only '{runs[0]}' is read; export one run at a time")
    keys: list[str | None] = [header[0]]
    for name in header[1:]:
        run, key = name.rsplit(" - ", 1)
        keys.append(None if run != runs[0] or key.endswith(("__MIN", "__MAX")) else key)
    return keys


def _delimiter(header: str) -> str:
    return max(",\t;", key=header.count)


def _starts_with_brace(path: Path) -> bool:
    with open_bytes(path) as handle:
        try:
            return handle.read(64).lstrip().startswith(b"{")
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return False


def _first_keys(path: Path) -> set[str]:
    """The keys of the first line, of JSON or CSV: for `claims`, which never raises."""
    try:
        if (value := first_object(path)) is not None:
            row = _Row()
            _flatten(value, "", row)
            return {*value, *row.scalars}
        with open_bytes(path) as handle:
            header = handle.readline(MAX_LINE).decode("utf-8-sig", "replace")
        names = next(csv.reader([header], delimiter=_delimiter(header)), [])
    except (OSError, EOFError, UsageError, csv.Error, zlib.error):
        return set()
    return {key for key in _columns(names, lambda *_: None) if key is not None}


def _is_curve(keys: set[str]) -> bool:
    """Known metrics and nothing of a single completion. Plain names count only beside a step, or two at a time."""
    if keys & ROLLOUT_KEYS or any(key.endswith("_id") and key != "run_id" for key in keys):
        return False
    names = len(find_names(keys, None))
    return tool_of(keys) is not None or names >= 2 or (names == 1 and not keys.isdisjoint(STEP_KEYS))
