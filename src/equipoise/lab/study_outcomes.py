"""What an evaluation found of every problem, and the numbers that follow from it. Axes: T temperatures, P problems.

All that a study reports of a policy is computed from these rows, and they are kept: `problems.parquet`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.base import Estimate
from equipoise.files import atomic_write
from equipoise.measures.intervals import Floats, Interval, mean_of_prompts, ratio_of_sums
from equipoise.measures.passk import pass_at_k_of

# drawn: completions that were judged; distinct: readable answers; sums are over the tokens of a problem's completions,
# those of the KL over the completions that it was taken on.
COUNTS = ("drawn", "correct", "distinct", "tokens", "entropy_sum", "kl_tokens", "kl_sum")


@dataclass(frozen=True)
class Outcomes:
    temperatures: tuple[float, ...]
    problems: tuple[str, ...]
    values_TP: Mapping[str, Floats]  # by the names of COUNTS

    def save(self, path: Path) -> None:
        write_tables([self.table()], path)

    @classmethod
    def load(cls, path: Path) -> Outcomes:
        table = pq.read_table(path)
        temperatures = tuple(dict.fromkeys(table["temperature"].to_pylist()))
        shape = (len(temperatures), -1)
        problems = table["problem"].to_pylist()[: table.num_rows // len(temperatures)]
        return cls(
            temperatures,
            tuple(problems),
            {name: table[name].to_numpy().reshape(shape).astype(np.float64) for name in COUNTS},
        )

    def table(self, arm: str | None = None, seed: int | None = None) -> pa.Table:
        """A row per temperature and problem."""
        n_t, n_p = len(self.temperatures), len(self.problems)
        columns = {
            "arm": pa.array([arm] * (n_t * n_p), type=pa.string()),
            "seed": pa.array([seed] * (n_t * n_p), type=pa.int64()),
            "temperature": pa.array(np.repeat(self.temperatures, n_p)),
            "problem": pa.array(list(self.problems) * n_t),
        }
        return pa.table(columns | {name: pa.array(self.values_TP[name].ravel()) for name in COUNTS})

    def at(self, temperature: float) -> int:
        return self.temperatures.index(temperature)

    @cached_property
    def ks(self) -> tuple[int, ...]:
        fewest = int(self.values_TP["drawn"].min())
        return tuple(2**i for i in range(fewest.bit_length()))

    def passes(self, k: int) -> Floats:
        """pass@k of every temperature and problem (T, P)."""
        return np.asarray(pass_at_k_of(self.values_TP["correct"], self.values_TP["drawn"], k), dtype=np.float64)

    def solved(self, at: int) -> np.ndarray:
        return np.asarray(self.values_TP["correct"][at] > 0)

    def estimates(self, at: int) -> list[Estimate]:
        """pass@k, distinct answers on solved and unsolved problems, entropy and KL to the base at one temperature."""
        found = [mean_of_prompts(self.passes(k)[at], bounds=(0, 1)).named(f"pass@{k}", {"k": k}) for k in self.ks]
        distinct_P, solved_P = self.values_TP["distinct"][at], self.solved(at)
        for name, among_P in (("distinct_solved", solved_P), ("distinct_unsolved", ~solved_P)):
            if among_P.any():
                found.append(mean_of_prompts(distinct_P[among_P], bounds=(0, np.inf)).named(name))
            else:
                found.append(Estimate(name, None, n=0, missing=f"problems that are {name.partition('_')[2]}"))
        found.append(self._per_token("entropy", at).named("entropy"))
        return [*found, self._per_token("kl", at).named("kl_to_base")]

    def _per_token(self, what: str, at: int) -> Interval:
        sums_P = self.values_TP[f"{what}_sum"][at]
        tokens_P = self.values_TP["tokens" if what == "entropy" else "kl_tokens"][at]
        if not sums_P.any():
            return Interval(0.0, None, None, len(sums_P), "0 at every token; no interval")
        return ratio_of_sums(sums_P, tokens_P, np.arange(len(sums_P)))


def write_tables(tables: Iterable[pa.Table], path: Path) -> None:
    """Several tables as one file, complete or absent."""
    with atomic_write(path) as handle:
        pq.write_table(pa.concat_tables(tables), handle, compression="zstd")
