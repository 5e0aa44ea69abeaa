"""Group health along the run: at every step, groups without a gradient and rollouts cut off. Axes: R rollouts, P problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.answers import AnswerTable
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.health import HOW, group_means, truncated_means
from equipoise.measures.intervals import mean_of_prompts
from equipoise.measures.prompts import conditions
from equipoise.measures.step_buckets import step_buckets

MISSING = "rollouts of training steps with rewards and group ids (columns step, reward, group_id), or a trainer's log"
# What a log calls it: other trainers by the common name, the embedded one by its own.
LOGGED: Mapping[str, tuple[str, ...]] = {
    "dead_groups": ("group_zero_std_frac",),
    "all_wrong": ("all_wrong",),
    "all_right": ("all_right",),
    "truncated": ("truncated_frac", "truncated"),
}


def estimate_health_steps(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Dead groups, their kinds, effective samples and truncation at each step; then the same as the trainer logged it."""
    results: list[Estimate] = []
    table = evidence.answers
    for at, rows in conditions(table):
        part = table.take(rows)
        for step, mine in step_buckets(part.numbers["step"]):
            results += _at_step(part.take(mine), at | {"step": step})
    results += _logged(evidence.metrics)
    return results or [Estimate("dead_groups", None, missing=MISSING)]


def _at_step(part: AnswerTable, at: dict[str, Any]) -> Iterator[Estimate]:
    prompt_P = np.unique(part.prompt_R[part.prompt_R >= 0])
    for name, values_P in (*group_means(part, prompt_P), *truncated_means(part, prompt_P)):
        known = values_P[np.isfinite(values_P)]
        if len(known):
            found = mean_of_prompts(known, bounds=(0, 1))
            yield Estimate(name, found.value, found.low, found.high, found.n, at, f"{HOW[name]}; {found.how}")


def _logged(metrics: Sequence[Mapping[str, Any]]) -> Iterator[Estimate]:
    """One value for each step or stretch of steps: the mean of the rows that were logged there."""
    for name, keys in LOGGED.items():
        rows = [(row.get("step"), next((row[key] for key in keys if _number(row.get(key))), None)) for row in metrics]
        found = np.asarray([(step, value) for step, value in rows if _number(step) and value is not None], dtype=float)
        for step, mine in step_buckets(found[:, 0]) if len(found) else ():
            yield Estimate(
                name,
                float(found[mine, 1].mean()),
                n=len(mine),
                at={"source": "log", "step": step},
                how="as logged by the trainer, n counts log rows; no interval: a log has one value for a step",
            )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))
