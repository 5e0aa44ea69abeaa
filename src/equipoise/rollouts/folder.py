"""Our run folder, read as a stream: only the parts and columns that are asked for, in step order.

    run.json  metrics.jsonl  choices.jsonl  vocab.json  rollouts/step=000123/part-0000.parquet

The step of a part is the name of its folder, as Hive partitions have it, so `pandas.read_parquet("run/rollouts")` and
DuckDB read it too. A run may be read while it is written: parts appear whole, and a torn last line is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from equipoise.errors import UsageError
from equipoise.files import read_json, read_json_lines
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.columns import BY_NAME, SCHEMA_VERSION
from equipoise.rollouts.conform import conform
from equipoise.rollouts.metrics import merge_lines
from equipoise.rollouts.parquet import stream_part
from equipoise.rollouts.rows import Warn
from equipoise.rollouts.run import Run, RunInfo, Warnings

_STEP = re.compile(r"step=(-?\d{1,18}|none)")
_PART = re.compile(r"part-\d+\.parquet")


class Part(NamedTuple):
    step: int | None
    path: Path


def claims(path: Path) -> bool:
    """A folder with our run.json, or with rollouts/step=…"""
    folder = _run_folder(path)
    return folder.is_dir() and ((folder / "run.json").is_file() or bool(step_folders(folder)))


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    """The `Reader` protocol; the columns of a run folder have their names already."""
    if columns:
        raise UsageError(
            f"{path} is a run folder, whose columns have the record's names; leave out --column (columns=)"
        )
    return open_folder(path)


def open_baseline(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    """`open` with a map that was written for another run, of which a run folder needs nothing."""
    return open_folder(path)


def open_folder(path: Path) -> Run:
    """A run folder as a `Run`. Metadata is read now, everything else when a stream is started."""
    folder = _run_folder(Path(path))
    if not folder.is_dir():
        raise UsageError(f"{path} is not a folder")
    warnings = Warnings()
    return Run(
        path=folder,
        info=_read_info(folder, warnings),
        stream=lambda columns: stream_parts(list_parts(folder), columns, warnings.one_pass()),
        read_metrics=lambda: _metrics(folder / "metrics.jsonl", warnings.one_pass()),
        read_choices=lambda: _lines(folder / "choices.jsonl", warnings.one_pass()),
        read_vocab=lambda: read_vocab(folder),
        warnings=warnings,
    )


def list_parts(folder: Path) -> list[Part]:
    """The complete parts, by step and number; rows without a step last. Temporary files have other names."""
    return [part for _, home in step_folders(folder) for part in step_parts(home)]


def step_parts(home: Path) -> list[Part]:
    """The complete parts of one step's folder, by number."""
    step = _step_of(home)
    paths = sorted(home.iterdir(), key=lambda p: (len(p.name), p.name))
    return [Part(step, path) for path in paths if _PART.fullmatch(path.name)]


def step_folders(folder: Path) -> list[tuple[int | None, Path]]:
    """(step, folder) of every step that has rollouts, by step: a listing, nothing is opened."""
    home = folder / "rollouts"
    found = [path for path in home.iterdir() if _STEP.fullmatch(path.name)] if home.is_dir() else []
    steps = [(_step_of(path), path) for path in found]
    return sorted(steps, key=lambda item: (item[0] is None, item[0] or 0))


def _step_of(home: Path) -> int | None:
    match = _STEP.fullmatch(home.name)
    return None if match is None or match[1] == "none" else int(match[1])


def _run_folder(path: Path) -> Path:
    return path.parent if path.name == "rollouts" and (path.parent / "run.json").is_file() else path


def _read_info(folder: Path, warn: Warn) -> RunInfo:
    if not (folder / "run.json").exists():
        warn(
            "no-run-json", f"{folder.name} has no run.json: model, settings and how entropies were measured are unknown"
        )
        return RunInfo(source="unknown")
    return info_of(folder / "run.json")


def info_of(path: Path) -> RunInfo:
    """run.json as a `RunInfo`, of a version that this code can read."""
    found = read_json(path)
    version = found.get("schema_version") if isinstance(found, dict) else None
    if not isinstance(version, int):
        raise UsageError(f"{path} has no schema_version: it is not the run.json of a run folder")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema_version {version}, this version reads up to {SCHEMA_VERSION}; upgrade equipoise"
        )
    known = {field.name for field in fields(RunInfo)}
    values = {name: value for name, value in found.items() if name in known}
    for name in ("sampling", "settings", "provenance"):
        if not isinstance(values.get(name, {}), dict):
            raise UsageError(f"{path}: {name} is a {type(values[name]).__name__}, not an object")
    return RunInfo(**({"source": "unknown"} | values))


def stream_parts(parts: Sequence[Part], columns: Sequence[str] | None, warn: Warn) -> Iterator[Rollouts]:
    """The rollouts of these parts. One that is damaged is left out with a warning, unless no part can be read."""
    wanted = tuple(BY_NAME) if columns is None else tuple(dict.fromkeys(columns))
    damaged = 0
    for step, path in parts:
        try:
            batches = stream_part(path, wanted, warn)
        except UsageError as problem:
            damaged += 1
            if damaged == len(parts):
                raise
            warn("damaged-part", f"{path.parent.name}/{path.name} was left out: {problem}")
            continue
        for batch in batches:
            yield _as_rollouts(batch, wanted, step, warn)


def _as_rollouts(batch: pa.RecordBatch, wanted: tuple[str, ...], step: int | None, warn: Warn) -> Rollouts:
    """The batch in the asked order, with its step. A column that is null in every row is left out: it was not recorded."""
    n_rows, arrays = batch.num_rows, {}
    for name in wanted:
        at = batch.schema.get_field_index(name)
        if at < 0:
            if name == "step" and step is not None:
                arrays[name] = pa.array(np.full(n_rows, step, dtype=np.int64))
            continue
        array = batch.column(at)
        if array.null_count == n_rows:
            continue
        kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        arrays[name] = array if kind == BY_NAME[name].type else conform(name, array, warn)
    return Rollouts.of_arrays(arrays, n_rows)


def _metrics(path: Path, warn: Warn) -> Iterator[dict[str, Any]]:
    return merge_lines(path.name, _numbered(path, warn), warn)


def _lines(path: Path, warn: Warn) -> Iterator[dict[str, Any]]:
    return (line for _, line in _numbered(path, warn))


def _numbered(path: Path, warn: Warn) -> Iterator[tuple[int, dict[str, Any]]]:
    return read_json_lines(path, warn=warn) if path.exists() else iter(())


def read_vocab(folder: Path) -> dict[int, str] | None:
    """{token id: text} of vocab.json, or None where there is none."""
    path = folder / "vocab.json"
    if not path.exists():
        return None
    found = read_json(path)
    try:
        return {int(token): str(text) for token, text in found.items()}
    except (AttributeError, ValueError):
        raise UsageError(f"{path} is not an object of token ids and texts") from None
