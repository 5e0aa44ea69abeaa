"""What the committed studies measured, as arrays: every policy on every problem at every temperature."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

RESULTS = Path(__file__).resolve().parents[2] / "studies" / "results"
WHOLE = (
    "collapse",
    "collapse-cpu",
    "smollm2",
    "frontier",
    "held-out-trips",
)  # the studies of many arms on fresh problems, not made for one question
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Studied:
    """One study's results.json and problems.parquet. Axes: S seeds, T temperatures, P problems."""

    name: str
    results: dict[str, Any]
    temperatures: tuple[float, ...]
    counts: dict[str, dict[str, Floats]]  # by arm: `correct` and `distinct`, both STP

    @property
    def headline(self) -> int:
        return self.temperatures.index(self.results["headline"])

    @property
    def samples(self) -> int:
        return int(self.results["evaluation"]["samples"])

    @property
    def arms(self) -> list[str]:
        return [arm for arm in self.counts if arm != "base"]

    def pass_1(self, arm: str) -> Floats:
        """Over seeds and temperatures."""
        return self.counts[arm]["correct"].mean(axis=2) / self.samples


def read_study(folder: Path) -> Studied:
    results = json.loads((folder / "results.json").read_text())
    rows = pq.read_table(folder / "problems.parquet").to_pydict()
    problems = {key: n for n, key in enumerate(dict.fromkeys(rows["problem"]))}
    temperatures = tuple(sorted(set(rows["temperature"])))
    counts: dict[str, dict[str, Floats]] = {}
    for arm in dict.fromkeys(rows["arm"]):
        seeds = {
            seed: n
            for n, seed in enumerate(
                dict.fromkeys(s for a, s in zip(rows["arm"], rows["seed"], strict=True) if a == arm)
            )
        }
        counts[arm] = {
            name: np.full((len(seeds), len(temperatures), len(problems)), np.nan) for name in ("correct", "distinct")
        }
        for n, of in enumerate(rows["arm"]):
            if of == arm:
                at = seeds[rows["seed"][n]], temperatures.index(rows["temperature"][n]), problems[rows["problem"][n]]
                for name, values_STP in counts[arm].items():
                    values_STP[at] = rows[name][n]
    return Studied(folder.name, results, temperatures, counts)


def studies(names: Sequence[str] = WHOLE) -> list[Studied]:
    return [read_study(RESULTS / name) for name in names]


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]], *, texts: int = 1) -> str:
    """The first `texts` columns are words, the others numbers."""
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * texts + " ---: |" * (len(heads) - texts)]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])
