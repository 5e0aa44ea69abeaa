"""What calls are worth to real SQL agents, and what a stop by value per cost would have saved and lost.

    python -m benchmarks.agents.run [--turns benchmarks/agents/turns.parquet]

Five models on 690 tasks, up to 10 calls each; an episode ends when the checker accepts (`SOURCE.md`). The value of a call is learned on the
tasks with even numbers and used on the odd ones, and the other way round, so that no task is judged by what it taught. Writes
`results.json` and `README.md` beside this file.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.agents.make_table import STATES
from benchmarks.agents.page import write_page
from equipoise.infer.call_value import Gains, learn_gains, worth_a_call
from equipoise.measures.intervals import Interval, cluster_bootstrap, mean_of_prompts, paired_difference
from equipoise.measures.search_steps import fit_saturation

HERE = Path(__file__).parent
CALLS = 10
PRICES = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05)  # solved tasks that one call must be worth
ONE_STATE = 1


@dataclass(frozen=True, slots=True)
class Episodes:
    """Axes: E tasks, T calls. `best` is 1 from the solving call on, nan after an episode's end; `state` is −1 there."""

    task_E: np.ndarray
    best_ET: np.ndarray
    state_ET: np.ndarray

    def take(self, rows: np.ndarray) -> Episodes:
        return Episodes(self.task_E[rows], self.best_ET[rows], self.state_ET[rows])

    @property
    def solved_ET(self) -> np.ndarray:
        """Whether a task is solved after so many calls."""
        return np.maximum.accumulate(np.nan_to_num(self.best_ET), axis=1)

    @property
    def length_E(self) -> np.ndarray:
        return np.isfinite(self.best_ET).sum(axis=1)


def read_episodes(path: Path) -> dict[str, Episodes]:
    table = pq.read_table(path).to_pandas()
    found = {}
    for model, rows in table.groupby("model", observed=True):
        tasks = np.sort(rows.task.unique())
        place = {task: i for i, task in enumerate(tasks)}
        best = np.full((len(tasks), CALLS), np.nan)
        state = np.full((len(tasks), CALLS), -1)
        for task, call, solved, seen in zip(rows.task, rows.call, rows.solved, rows.state, strict=True):
            best[place[task], call - 1] = float(solved)
            state[place[task], call - 1] = seen
        found[str(model)] = Episodes(tasks, best, state)
    return found


def stop_calls(episodes: Episodes, gains: Gains, *, price: float, scarcity: bool, states: bool) -> np.ndarray:
    """After how many calls the rule ends each episode, at most those that it had. It never knows what was right."""
    ends = episodes.length_E.copy()
    for e, length in enumerate(ends):
        for t in range(length - 1):
            gain = gains.of(t, int(episodes.state_ET[e, t]) if states else 0)
            left = CALLS - 1 - t
            if not worth_a_call(gain, cost=1.0, price=price, budget=CALLS if scarcity else left, left=left):
                ends[e] = t + 1
                break
    return ends


def both_halves(episodes: Episodes, *, price: float, scarcity: bool, states: bool) -> np.ndarray:
    """Learned on one half of the tasks, used on the other."""
    ends = np.zeros(len(episodes.task_E), dtype=int)
    for half in (0, 1):
        mine = episodes.task_E % 2 == half
        other = episodes.take(~mine)
        seen = other.state_ET if states else np.where(other.state_ET >= 0, 0, -1)
        gains = learn_gains(other.best_ET, seen, states=len(STATES) if states else ONE_STATE)
        ends[mine] = stop_calls(episodes.take(mine), gains, price=price, scarcity=scarcity, states=states)
    return ends


def fixed_at(episodes: Episodes, calls: float) -> np.ndarray:
    """Solved under a cap that makes as many calls on average: a mixture of the two caps around it."""
    used_T = np.array([np.minimum(episodes.length_E, cap).mean() for cap in range(1, CALLS + 1)])
    high = int(np.searchsorted(used_T, calls).clip(1, CALLS - 1))
    share = float(np.clip((calls - used_T[high - 1]) / max(used_T[high] - used_T[high - 1], 1e-12), 0, 1))
    solved_ET = episodes.solved_ET
    return (1 - share) * solved_ET[:, high - 1] + share * solved_ET[:, high]


def shown(found: Interval) -> dict[str, Any]:
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}


def rule_row(parts: dict[str, Episodes], *, price: float, scarcity: bool, states: bool) -> dict[str, Any]:
    """Per task, the mean over the models given."""
    tasks = sorted(set.intersection(*(set(each.task_E.tolist()) for each in parts.values())))
    solved, full, fixed, used, total = [], [], [], [], []
    for episodes in parts.values():
        rows = np.isin(episodes.task_E, tasks)
        ends = both_halves(episodes, price=price, scarcity=scarcity, states=states)
        solved_ET = episodes.solved_ET
        solved.append(solved_ET[np.arange(len(ends)), ends - 1][rows])
        full.append(solved_ET[:, -1][rows])
        fixed.append(fixed_at(episodes, float(ends.mean()))[rows])
        used.append(ends[rows])
        total.append(episodes.length_E[rows])
    mean = [np.mean(each, axis=0) for each in (solved, full, fixed, used, total)]
    return {
        "price": price,
        "scarcity": scarcity,
        "states": states,
        "solved": shown(mean_of_prompts(mean[0], bounds=(0.0, 1.0))),
        "lost": shown(paired_difference(mean[0], mean[1])),
        "calls": shown(mean_of_prompts(mean[3], bounds=(1.0, CALLS))),
        "calls_saved": shown(paired_difference(mean[4], mean[3])),
        "calls_full": float(np.mean(mean[4])),
        "minus_cap": shown(paired_difference(mean[0], mean[2])),
    }


def curve(episodes: Episodes, *, seed: int = 0) -> dict[str, Any]:
    solved_ET = episodes.solved_ET
    turn_T = np.arange(1, CALLS + 1, dtype=float)
    fit = fit_saturation(turn_T, solved_ET.mean(axis=0))
    steps = np.diff(solved_ET, axis=1, prepend=0)
    going_ET = np.isfinite(episodes.best_ET)

    def half_life(weight_E: np.ndarray) -> float:
        found = fit_saturation(turn_T, weight_E @ solved_ET / weight_E.sum())
        return float("nan") if found is None else found.half_life

    life = cluster_bootstrap(half_life, np.arange(len(solved_ET)), draws=400, seed=seed) if fit is not None else None
    return {
        "solved": [shown(mean_of_prompts(solved_ET[:, t], bounds=(0.0, 1.0))) for t in range(CALLS)],
        "gain": [shown(mean_of_prompts(steps[:, t], bounds=(0.0, 1.0))) for t in range(CALLS)],
        "gain_of_those_still_going": [float(steps[going_ET[:, t], t].mean()) for t in range(CALLS)],
        "ceiling": None if fit is None else fit.ceiling,
        "half_life": None if life is None else shown(life),
        "calls": float(episodes.length_E.mean()),
        "tasks": len(episodes.task_E),
    }


def state_rates(episodes: Episodes) -> dict[str, Any]:
    """The chance that the next call solves the task, by what was seen last."""
    found = {}
    for code, name in enumerate(STATES):
        here = (episodes.state_ET[:, :-1] == code) & np.isfinite(episodes.best_ET[:, 1:])
        hits = episodes.best_ET[:, 1:][here]
        found[name] = {"calls": int(here.sum()), "next_solves": float(hits.mean()) if len(hits) else None}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=Path, default=HERE / "turns.parquet")
    models = read_episodes(parser.parse_args().turns)
    results: dict[str, Any] = {"schema": "equipoise.benchmarks.agents/1", "models": {}}
    for name, parts in {**{model: {model: episodes} for model, episodes in models.items()}, "all five": models}.items():
        rows = [
            rule_row(parts, price=price, scarcity=scarcity, states=states)
            for price in PRICES
            for scarcity, states in ((False, True), (True, True), (False, False))
        ]
        results["models"][name] = {"rules": rows}
        if name in models:
            results["models"][name] |= {"curve": curve(models[name]), "states": state_rates(models[name])}
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (HERE / "README.md").write_text(write_page(results))


if __name__ == "__main__":
    main()
