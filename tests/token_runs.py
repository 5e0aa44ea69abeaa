"""Runs made of rows in memory, for tests of the token measures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from equipoise.base import Estimate
from equipoise.measures.evidence import Evidence, collect
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.columns import schema
from equipoise.rollouts.run import Run, RunInfo


def as_stored(rows: Sequence[dict[str, Any]]) -> Rollouts:
    """A batch with the types that the record has on disk."""
    names = tuple({name for row in rows for name in row})
    return Rollouts(pa.Table.from_pylist(list(rows), schema=schema(names)).combine_chunks().to_batches()[0])


def run_of(rows: Sequence[dict[str, Any]], *, metrics: Sequence[dict[str, Any]] = (), vocab=None, **info: Any) -> Run:
    return Run(
        Path("run"),
        RunInfo("test", **info),
        stream=lambda columns: iter([as_stored(rows)]),
        read_metrics=lambda: iter(metrics),
        read_vocab=lambda: vocab,
    )


def evidence_of(rows: Sequence[dict[str, Any]], needs=("tokens", "metrics"), **kept: Any) -> Evidence:
    return collect(run_of(rows, **kept), needs)


def find(estimates: list[Estimate], name: str, **at: Any) -> Estimate:
    """The one estimate with this name and these conditions."""
    found = [e for e in estimates if e.name == name and all(e.at.get(key) == value for key, value in at.items())]
    assert len(found) == 1, f"{len(found)} estimates {name} at {at}: {[(e.name, dict(e.at)) for e in estimates][:40]}"
    return found[0]


def stepped_rows(
    seed: int,
    *,
    steps: int = 10,
    prompts: int = 6,
    samples: int = 3,
    fork: float = 1.0,
    routine: float = 1.0,
    length: int = 80,
) -> list[dict[str, Any]]:
    """Rollouts whose forks (a quarter of the tokens) and routine tokens end on these multiples of their first entropy."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        done = step / max(1, steps - 1)
        for prompt in range(prompts):
            level = np.exp(0.3 * np.sin(prompt))
            for _ in range(samples):
                n = int(rng.integers(length // 2, 2 * length))
                forks = rng.random(n) < 0.25
                H = np.where(
                    forks, rng.normal(1.5, 0.2, n).clip(0.5) * fork**done, rng.exponential(0.15, n) * routine**done
                )
                logp = -rng.exponential(1.0, n)
                rows.append(
                    {
                        "run_id": "r",
                        "step": step,
                        "prompt_id": f"p{prompt}",
                        "token_ids": np.where(forks, rng.integers(0, 5, n), rng.integers(5, 50, n)).tolist(),
                        "entropies": (level * H).astype(np.float16).tolist(),
                        "logprobs_rollout": logp.astype(np.float32).tolist(),
                        "logprobs_train": (logp + rng.normal(0, 0.1, n)).astype(np.float32).tolist(),
                        "logprobs_ref": (logp + rng.normal(0, 0.2 + 0.3 * done, n)).astype(np.float32).tolist(),
                    }
                )
    return rows
