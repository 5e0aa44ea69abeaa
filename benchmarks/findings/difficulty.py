"""Hard, medium and mixed problems: what each trains, how many rollouts teach nothing or break down, and what becomes of untouched tasks.

    python -m benchmarks.findings.difficulty make             trains studies/difficulty.toml and asks, half an hour on two cores
    python -m benchmarks.findings.difficulty [make] --trips    the same of studies/difficulty-trips.toml
    python -m benchmarks.findings.difficulty                  the tables, from studies/results/difficulty

Untouched: Countdown with four numbers from 10 to 25, where those of training are from 1 to 20, of which the base model solves 7 %; and with three
numbers, of which it solves hardly any: who solves them after training on four has them from elsewhere. Of trips, those of eight cities and
three days, which the base model planned before it learnt nine, and of seven cities. A group teaches nothing where all of its completions are right, or all wrong. Broken: no answer can be read, the text ran into its limit, or `text.degenerate` flags it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.findings.arms import arms_table
from benchmarks.findings.buy_back import Drawing, draw
from benchmarks.findings.drawing import Drawer
from benchmarks.findings.outcomes import Cells, arms_of, told
from benchmarks.findings.policies import (
    Row,
    ask_all,
    asked,
    load_study,
    policies_of,
    read_rows,
    run_study,
    say,
    train_base,
    write_rows,
)
from benchmarks.findings.studied import table
from equipoise.errors import UsageError
from equipoise.files import atomic_write, make_folder, read_json
from equipoise.lab.study_config import BASE, StudyConfig
from equipoise.lab.study_numbers import difference
from equipoise.lab.study_run import steps_logged
from equipoise.rollouts.folder import open_folder
from equipoise.tasks.table import find_task
from equipoise.text.degenerate import find_degenerate

RATES, BROKEN = "rates.json", "broken.parquet"
TRIES = 16
UNTOUCHED = {
    "difficulty": {"numbers from 10 to 25": "countdown:smallest=10,largest=25", "three numbers": "countdown:numbers=3"},
    "difficulty-trips": {
        "eight cities and three days": "trips:reward=right",
        "seven cities": "trips:cities=7,flights=11,dates=2,reward=right",
    },
}


class Chosen:
    """A curriculum that draws evenly from the problems whose success rate on file lies between two bounds, whatever happens later."""

    def __init__(self, *, file: str, low: float = 0.0, high: float = 1.0, seed: int = 0) -> None:
        self.file, self.low, self.high, self.seed, self.step = Path(file), low, high, seed, 0
        self._ids: list[str] = []

    def add(self, prompt_ids: Sequence[str]) -> None:
        rates = read_json(self.file)
        unknown = [prompt_id for prompt_id in prompt_ids if prompt_id not in rates]
        if unknown:
            raise UsageError(
                f"{self.file} has no success rate of {unknown[0]} and {len(unknown) - 1} others: make it anew"
            )
        self._ids += [prompt_id for prompt_id in prompt_ids if self.low <= rates[prompt_id] <= self.high]

    def draw(self, n: int, *, beside: Sequence[str] = ()) -> tuple[str, ...]:
        free = [prompt_id for prompt_id in self._ids if prompt_id not in set(beside)]
        if len(free) < n:
            raise UsageError(
                f"a step asks for {n} problems between {self.low:g} and {self.high:g}, and there are {len(free)}"
            )
        chosen = np.random.default_rng([self.seed, self.step, len(beside)]).choice(len(free), size=n, replace=False)
        return tuple(free[place] for place in chosen)

    def observe(self, *, prompt_ids_P: object, correct_PG: object, keep_PG: object) -> None:
        self.step += 1

    def tiers(self) -> dict[str, int]:
        return {"chosen": len(self._ids)}

    def state(self) -> dict[str, Any]:
        return {"step": self.step}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.step = int(state["step"])


def pools_of(config: StudyConfig) -> list[int]:
    """The seeds that have a pool; that of the runs which choose the learning rate is one of them."""
    return [*config.seeds, *([config.tune.seed] if config.tune and config.tune.lr else [])]


def write_rates(config: StudyConfig) -> None:
    """How often the base model solves each problem of every seed's pool."""
    run = config.base
    assert run.sampling.pool is not None
    task = find_task(run.task)
    problems = {
        problem.id: problem for seed in pools_of(config) for problem in task.problems((seed, "pool"), run.sampling.pool)
    }
    drawer, rates = Drawer(policies_of(config)[0]), dict[str, float]()
    for batch in drawer.batches(list(problems.values()), samples=TRIES, temperature=1.0, seed=("rates",)):
        rates |= {problem.id: float(n) / TRIES for problem, n in zip(batch.problems, batch.right_P, strict=True)}
    make_folder(config.out)
    with atomic_write(config.out / RATES) as handle:
        handle.write((json.dumps(rates) + "\n").encode())
    found = np.array(list(rates.values()))
    say(
        f"{len(found)} problems: {(found <= 0.07).mean():.0%} hard, {((found >= 0.18) & (found <= 0.63)).mean():.0%} medium"
    )


def read_broken(folder: Path) -> Row:
    """Shares over the recorded training rollouts of a run, and of its groups over all steps."""
    counts = {"rollouts": 0, "unreadable": 0, "truncated": 0, "degenerate": 0}
    for part in open_folder(folder).rollouts(("split", "completion", "answer", "finish_reason")):
        for row in part.rows():
            if row["split"] == "train":
                counts["rollouts"] += 1
                counts["unreadable"] += row.get("answer") is None
                counts["truncated"] += row.get("finish_reason") == "length"
                counts["degenerate"] += bool(find_degenerate(row["completion"] or "", answer=row.get("answer")).flags)
    lines = list(steps_logged(folder))
    dead = {name: float(np.mean([line[name] for line in lines])) for name in ("all_wrong", "all_right")}
    return counts | dead


def broken_row(rows: Sequence[Row], arm: str) -> tuple[str, ...]:
    mine = [row for row in rows if row["arm"] == arm]
    n = sum(row["rollouts"] for row in mine)
    shares = [f"{sum(row[name] for row in mine) / n:.4f}" for name in ("unreadable", "truncated", "degenerate")]
    dead = [f"{np.mean([row[name] for row in mine]):.3f}" for name in ("all_wrong", "all_right")]
    return (arm, str(n), *dead, *shares)


def untouched_rows(words: str, rows: Sequence[Row], k: int) -> list[tuple[str, ...]]:
    """Every arm on a task that it was not trained on, against the base model."""
    cells = Cells([row for row in rows if row["split"] == "test"], ("arm", "temperature"))
    found = []
    for arm in arms_of(rows):
        told_of = []
        for name in ("pass@1", f"pass@{k}"):
            mine, base = (cells.values((who, 1.0), name) for who in (arm, BASE))
            told_of += [f"{mine.mean():.3f}", "" if arm == BASE else told(difference(mine, base))]
        found.append((words, arm, *told_of))
    return found


def tables(out: Path, untouched: Iterable[str]) -> str:
    broken = read_rows(out / BROKEN)
    heads = ("arm", "rollouts read", "groups all wrong", "all right", "unreadable", "ran into the limit", "degenerate")
    parts = [
        arms_table(out),
        table(heads, [broken_row(broken, arm) for arm in dict.fromkeys(row["arm"] for row in broken)]),
    ]
    body: list[tuple[str, ...]] = []
    k = 0
    for words in untouched:
        rows = read_rows(out / _file(words))
        k = int(max(row["drawn"] for row in rows if row["split"] == "test"))
        body += untouched_rows(words, rows, k)
    parts.append(table(("untouched task", "arm", "pass@1", "Δ to base", f"pass@{k}", "Δ to base"), body))
    return "\n\n".join(parts)


def _file(words: str) -> str:
    return f"untouched-{words.replace(' ', '-')}.parquet"


def main() -> None:
    given = asked(__doc__ or "", flags=("trips",))
    name = "difficulty-trips" if given.trips else "difficulty"
    config, untouched = load_study(name, given.settings), UNTOUCHED[name]
    if given.verb == "make":
        train_base(config)
        if not (config.out / RATES).exists():
            write_rates(config)
        run_study(config, jobs=given.jobs)
        policies = policies_of(config)
        runs = [
            {"arm": policy.arm, "seed": policy.seed} | read_broken(Path(policy.model))
            for policy in policies
            if policy.arm != BASE
        ]
        write_rows(config.out / BROKEN, runs)
        how = replace(Drawing.asked(given), samples=given.samples or 64, temperatures=(1.0,))
        for words, task in untouched.items():
            others = [replace(policy, task=task) for policy in policies]
            ask_all(draw, others, how, config.out / _file(words), jobs=given.jobs)
    print(tables(config.out, untouched))


if __name__ == "__main__":
    main()
