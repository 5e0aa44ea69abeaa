"""Writes the bundled example runs: `python -m equipoise.lab.make_examples [FOLDER]`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.lab.synthetic_run import make_baseline, make_run
from equipoise.lab.verdict_examples import BASE, BASE_SAMPLES, EXAMPLES, FOLDER, SEED
from equipoise.rollouts.columns import COLUMNS, schema
from equipoise.rollouts.run import Run

LEFT_OUT = ("logprobs_rollout", "finish_reason")  # nothing in the demo reads them
STEP = 0.01  # nats, to which entropies are rounded: the files stay small


def make_examples(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    base = replace(EXAMPLES[0].world, samples=BASE_SAMPLES, tokens=0, prompts=False)
    save_run(make_baseline(base, seed=SEED), folder / f"{BASE}.parquet")
    for example in EXAMPLES:
        save_run(make_run(example.world, seed=SEED), folder / f"{example.name}.parquet")


def save_run(run: Run, path: Path) -> None:
    """All rollouts of a run in one Parquet file with the record's columns, those that any rollout has."""
    rows = [row for batch in run.rollouts() for row in batch.rows()]
    names = tuple(
        c.name for c in COLUMNS if c.name not in LEFT_OUT and any(row.get(c.name) is not None for row in rows)
    )
    kinds = schema(names)
    arrays = [pa.array([_stored(name, row.get(name)) for row in rows], kinds.field(name).type) for name in names]
    pq.write_table(pa.Table.from_arrays(arrays, schema=kinds), path, compression="zstd", compression_level=19)


def _stored(name: str, value: Any) -> Any:
    if name != "entropies" or value is None:
        return value
    return list((np.round(np.asarray(value, np.float64) / STEP) * STEP).astype(np.float16))


if __name__ == "__main__":
    make_examples(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
