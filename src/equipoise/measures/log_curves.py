"""Curves over steps as a trainer logged them. Axis: S rows of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.intervals import Floats
from equipoise.measures.step_buckets import step_buckets

Metrics = Sequence[Mapping[str, Any]]

# The names that readers give to other trainers' keys (`rollouts.logkeys`), then those of the embedded trainer.
KEYS = {
    "entropy": ("entropy",),
    "reward": ("reward_mean", "reward"),
    "mismatch": ("mismatch",),
    "coef": ("coef",),
}


def log_curve(metrics: Metrics, *names: str) -> tuple[Floats, ...]:
    """(steps, values of each name) of the rows that have all of them, by step."""
    rows = []
    for row in metrics:
        values = [row.get("step"), *(_first(row, name) for name in names)]
        if all(_finite(value) for value in values):
            rows.append([float(value) for value in values])
    table = np.asarray(sorted(rows), dtype=np.float64).reshape(-1, 1 + len(names))
    return tuple(np.ascontiguousarray(column) for column in table.T)


def moved_settings(metrics: Metrics) -> list[str]:
    """Settings that a controller moved: the embedded trainer logs them as part.setting, other trainers' coefficient is `coef`."""
    keys = {key for row in metrics for key, value in row.items() if _finite(value)}
    return sorted(key for key in keys if key == "coef" or ("." in key and "/" not in key and "@" not in key))


def _first(row: Mapping[str, Any], name: str) -> Any:
    return next((row[key] for key in KEYS.get(name, (name,)) if row.get(key) is not None), None)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def logged_points(name: str, metrics: Metrics, key: str, *, at: Mapping[str, Any], source: str) -> Iterator[Estimate]:
    """One estimate for every step of the log, or for stretches of a long one: their mean."""
    step_S, value_S = log_curve(metrics, key)
    for step, rows in step_buckets(step_S):
        how = f"as logged by the trainer ({source}); mean over log rows, which n counts; no interval: rows follow each other"
        yield Estimate(
            name, float(value_S[rows].mean()), n=len(rows), at={**at, "source": "log", "step": step}, how=how
        )
