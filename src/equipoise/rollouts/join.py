"""Several runs read as one: shards, seeds, or rollouts in one place and metrics in another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

from equipoise.errors import UsageError
from equipoise.rollouts.columns import BY_NAME
from equipoise.rollouts.metrics import join_lines
from equipoise.rollouts.rows import Warn
from equipoise.rollouts.run import Run, RunInfo, Warnings

MIXED = "mixed"  # under a column of `provenance`: {path: what that source says, or None}


def join_runs(runs: Sequence[Run]) -> Run:
    """One run with the rollouts of all, one after the other, and their metrics merged by step.

    Where the sources say different things of how a column was made, `provenance[column]` is {"mixed": {path: …}}: an
    entropy of two estimators must not go into one figure.
    """
    if not runs:
        raise UsageError("no run was given to join")
    if len(runs) == 1:
        return runs[0]
    warnings = Warnings(parts={str(run.path): run.warnings for run in runs})
    return Run(
        path=runs[0].path,
        info=_join_infos(runs, warnings),
        stream=lambda columns: chain.from_iterable(run.rollouts(columns) for run in runs),
        read_metrics=lambda: join_lines((run.metrics() for run in runs), warnings.one_pass()),
        read_choices=lambda: chain.from_iterable(run.choices() for run in runs),
        read_vocab=lambda: _join_vocabs(runs, warnings.one_pass()),
        warnings=warnings,
    )


def _join_infos(runs: Sequence[Run], warn: Warn) -> RunInfo:
    infos = [run.info for run in runs]
    values: dict[str, Any] = {"source": " + ".join(dict.fromkeys(info.source for info in infos))}
    for field in fields(RunInfo):
        said = [getattr(info, field.name) for info in infos]
        if isinstance(said[0], Mapping):
            values[field.name] = _agreed(said, field.name, warn)
        elif field.name != "source":
            known = {value for value in said if value is not None}
            values[field.name] = known.pop() if len(known) == 1 else None
    values["provenance"] = _join_provenance(runs, warn)
    return RunInfo(**values)


def _agreed(said: Sequence[Mapping[str, Any]], what: str, warn: Warn) -> dict[str, Any]:
    """The entries on which all that have them agree."""
    agreed: dict[str, Any] = {}
    for name in dict.fromkeys(chain.from_iterable(said)):
        found = [one[name] for one in said if name in one]
        if all(value == found[0] for value in found):
            agreed[name] = found[0]
        elif what != "provenance":
            warn(
                "mixed-settings",
                f"{what} {name} differs between the sources ({found[0]} and others) and is unknown for the whole",
            )
    return agreed


def _join_provenance(runs: Sequence[Run], warn: Warn) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for name in dict.fromkeys(chain.from_iterable(run.info.provenance for run in runs)):
        said = {
            str(run.path): run.info.provenance.get(name)
            for run in runs
            if name in run.info.provenance or (name in BY_NAME and _has(run, name))
        }
        first = next(iter(said.values()))
        if all(value == first for value in said.values()):
            joined[name] = first
        else:
            joined[name] = {MIXED: said}
            warn("mixed-provenance", f"{name} was made in different ways by the sources: {_shown(said)}")
    return joined


def _shown(said: Mapping[str, Any]) -> str:
    return "; ".join(f"{path}: {'not stated' if value is None else value}" for path, value in said.items())[:300]


def _has(run: Run, column: str) -> bool:
    first = next(iter(run.rollouts([column])), None)
    return first is not None and column in first.columns


def _join_vocabs(runs: Sequence[Run], warn: Warn) -> dict[int, str] | None:
    joined: dict[int, str] = {}
    for run in runs:
        for token, text in (run.vocab() or {}).items():
            if joined.setdefault(token, text) != text:
                warn("mixed-vocab", f"token {token} is {joined[token]!r} in one source and {text!r} in another")
                return None
    return joined or None
