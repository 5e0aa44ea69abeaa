"""The readers, most telling first, and how a path finds its own. To add one: its file, and one line here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from equipoise.errors import UsageError, unknown_name
from equipoise.rollouts.join import join_runs
from equipoise.rollouts.readers.mapping import ColumnMap
from equipoise.rollouts.readers.sources import as_csv
from equipoise.rollouts.run import Run

Source = Run | Path | str  # a run, or where to read one

# (module, what it reads). A module has claims(path) -> bool and open(path, *, columns=None) -> Run; it is named by a
# string so that only the one that claims the path is asked to read it. `plain` claims nearly anything and comes last.
# One may have open_baseline too, for a map that was written for another source.
READERS: tuple[tuple[str, str], ...] = (
    ("equipoise.rollouts.folder", "a run folder of Equipoise"),
    ("equipoise.rollouts.readers.inspect_log", "inspect .eval logs"),
    ("equipoise.rollouts.readers.lm_eval", "lm-eval samples"),
    ("equipoise.rollouts.readers.trl", "TRL completions"),
    ("equipoise.rollouts.readers.prime_rl", "prime-rl rollouts"),
    ("equipoise.rollouts.readers.verifiers", "verifiers traces"),
    ("equipoise.rollouts.readers.nemo_rl", "NeMo-RL dumps"),
    ("equipoise.rollouts.readers.open_instruct", "open-instruct rollouts"),
    ("equipoise.rollouts.readers.skyrl", "SkyRL evaluations"),
    ("equipoise.rollouts.readers.areal", "AReaL dumps"),
    ("equipoise.rollouts.readers.verl", "verl dumps"),
    ("equipoise.rollouts.readers.curves", "curves of metrics (CSV, JSON lines, TensorBoard)"),
    ("equipoise.rollouts.readers.plain", "JSON lines, JSON, CSV or Parquet with one row per completion"),
)


def read_run(path: Path | str, *, columns: Mapping[str, str] | None = None, reader: str | None = None) -> Run:
    """The run at a path, by the first reader that claims it, or by the one named (`reader="verl"`).

    `columns` maps names of the record to those of the source, where they cannot be guessed.
    """
    path = Path(path)
    _check_path(path)
    return _find_reader(path, reader).open(path, columns=columns)  # type: ignore[no-any-return]


def open_source(
    source: Source | Sequence[Source], *, columns: Mapping[str, str] | None = None, baseline: bool = False
) -> Run:
    """A run, a path, or several of them as one run.

    `baseline`: `columns` was written for another run, and holds here only where the source does not have the column itself.
    """
    if isinstance(source, Run):
        return source
    if isinstance(source, str | Path):
        return _read_baseline(Path(source), columns) if baseline else read_run(source, columns=columns)
    if not source:
        raise UsageError("no path was given; name a file or folder of rollouts")
    return join_runs([open_source(one, columns=columns, baseline=baseline) for one in source])


def _read_baseline(path: Path, columns: Mapping[str, str] | None) -> Run:
    _check_path(path)
    reader = _find_reader(path, None)
    lenient = None if columns is None else ColumnMap(columns, for_another=True)
    return getattr(reader, "open_baseline", reader.open)(path, columns=lenient)  # type: ignore[no-any-return]


def _find_reader(path: Path, name: str | None) -> ModuleType:
    if name is not None:
        known = {module.rpartition(".")[2]: module for module, _ in READERS}
        if name not in known:
            raise unknown_name("reader", name, known)
        return import_module(known[name])
    for module, _ in READERS:
        found = import_module(module)
        if found.claims(path):
            return found
    raise UsageError(
        f"{path} is of no format that is read here: {_what_is_there(path)}; read are {'; '.join(what for _, what in READERS)}"
    )


def _check_path(path: Path) -> None:
    """One line for what is missing, empty, closed to us, or neither file nor folder."""
    try:
        if not path.exists():
            near = next(parent for parent in path.absolute().parents if parent.exists())
            raise UsageError(f"{path} does not exist; {near} holds {_listing(near)}")
        if path.is_dir():
            if not os.access(path, os.R_OK | os.X_OK):
                raise UsageError(f"cannot read {path}: Permission denied")
            if not any(path.iterdir()):
                raise UsageError(f"{path} is an empty folder")
        elif not path.is_file():
            raise UsageError(f"{path} is neither a file nor a folder; save the rollouts to a file first")
        elif path.stat().st_size == 0:
            raise UsageError(f"{path} is empty")
        else:
            with open(path, "rb"):
                pass
    except (OSError, ValueError) as problem:
        if isinstance(problem, UsageError):
            raise
        raise UsageError(f"cannot read {path}: {getattr(problem, 'strerror', None) or problem}") from problem


def _what_is_there(path: Path) -> str:
    if path.is_dir():
        return f"it holds {_listing(path)}"
    with open(path, "rb") as handle:
        head = handle.read(24)
    name = as_csv(path)
    return f"it begins with {head!r}" + (f" and looks like CSV: name it {name}" if name else "")


def _listing(folder: Path) -> str:
    names = sorted(path.name + ("/" if path.is_dir() else "") for path in folder.iterdir())
    return (", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")) or "nothing"
