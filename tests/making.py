"""Runs and evidence made from plain rows, for tests of measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.base import Estimate
from equipoise.measures.evidence import Evidence, Options, collect
from equipoise.rollouts.rows import batches_of
from equipoise.rollouts.run import Run, RunInfo, Warnings


def run_of(rows: Iterable[Mapping[str, Any]]) -> Run:
    """A run whose rollouts are these rows, keyed by the record's column names."""
    held, warnings = list(rows), Warnings()
    return Run(Path("rows"), RunInfo("test"), lambda columns: batches_of(held, columns, warnings), warnings=warnings)


def evidence_of(rows: Iterable[Mapping[str, Any]], *needs: str, options: Options = Options()) -> Evidence:
    return collect(run_of(rows), needs or ("answers",), options=options)


def pool(
    prompt_id: str, answers: Sequence[str | None], right: Sequence[str] = (), **cells: Any
) -> list[dict[str, Any]]:
    """Rows of one problem: an answer each, right where it is among `right`. Letters are answers that stay as they are."""
    return [{"prompt_id": prompt_id, "answer": a, "correct": a in [*right], **cells} for a in answers]


def find(estimates: Iterable[Estimate], name: str, **at: Any) -> Estimate:
    """The one estimate of this name with these cells of `at`."""
    found = [e for e in estimates if e.name == name and all(e.at.get(key) == value for key, value in at.items())]
    assert len(found) == 1, f"{len(found)} estimates are called {name} at {at}"
    return found[0]
