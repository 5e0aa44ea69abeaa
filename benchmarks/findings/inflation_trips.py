"""Variance inflation on a second task: the planner of benchmarks/evolution, taught to think about trips, is made to think on.

    python -m benchmarks.findings.inflation_trips make     teaches three models and asks them: three quarters of an hour of two busy cores
    python -m benchmarks.findings.inflation_trips          the tables, from studies/results/inflation-trips/thinking.parquet

The ways and the tables are those of `inflation_smollm2`; the thoughts those of `trip_thoughts`. `key=value` replaces a setting of
`Taught`: seeds=[0] steps=2 traces=50 out=/tmp/trial.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks.findings.inflation_smollm2 import ARM, FILE, Twice, tables
from benchmarks.findings.policies import Policy, ask_all, asked, read_rows, say
from benchmarks.findings.thinking import think
from benchmarks.findings.trip_thoughts import CHECKED, make_thoughts
from benchmarks.findings.widened import widen
from equipoise.config import load_config
from equipoise.errors import UsageError
from equipoise.files import atomic_write, make_folder
from equipoise.lab.make_thinker import Lesson, learn
from equipoise.lab.search_traces import END, OFF, START, Trace
from equipoise.models.checkpoint import save_gpt
from equipoise.tasks.table import find_task
from equipoise.tasks.trips import Trips
from equipoise.training.recipe import Strict

MAX_TOKENS = 10  # of an answer: eight cities, its end, and some more


class Taught(Strict):
    """The model, and the lesson that makes it think."""

    out: Path = Path("studies/results/inflation-trips")
    model: Path = Path("benchmarks/evolution/planner.safetensors")
    task: str = "trips:cities=8,flights=10,dates=0,reward=right"
    seeds: tuple[int, ...] = (0, 1, 2)
    traces: int = 30_000
    steps: int = 800
    batch_tokens: int = 8_192
    lr: float = 1.5e-3  # the packaged thinker's
    warmup: int = 50
    context: int = 320
    capped: tuple[int, ...] = (0, 16, 32, 64, 128)
    forced: tuple[int, ...] = (32, 64, 128, 192)
    rows: int = 2048  # sampled at once

    def lesson(self, seed: int) -> Lesson:
        return Lesson(self.traces, self.steps, self.batch_tokens, self.lr, self.warmup, seed=seed)


def teach(config: Taught, seed: int) -> Policy:
    """Trained where it is not there; beside its rows stays how the loss fell."""
    path = config.out / "runs" / f"{ARM}-{seed}.safetensors"
    policy = Policy(ARM, seed, str(path), config.task, "cpu", MAX_TOKENS)
    if not path.exists():
        model, tokens = widen(
            config.model, f"{CHECKED}{OFF}{START}{END}", context=config.context, thinking=(START, END), seed=seed
        )
        lesson = config.lesson(seed)
        heard = learn(model, tokens, lesson, every=max(1, lesson.steps // 20), traces=partial(thoughts, config.task))
        make_folder(path.parent)
        about = {"model": str(config.model), "lesson": asdict(lesson), "loss": [asdict(at) for at in heard]}
        with atomic_write(config.out / f"{ARM}-{seed}.json") as handle:
            handle.write((json.dumps(about, indent=1) + "\n").encode())
        save_gpt(path, model, tokens)
        say(f"{path}: taught in {heard[-1].seconds:.0f} s, loss {heard[0].loss:.3f} → {heard[-1].loss:.3f}")
    return policy


def thoughts(spec: str, lesson: Lesson) -> Iterator[Trace]:
    task = find_task(spec)
    if not isinstance(task, Trips):
        raise UsageError(f"task is {spec}, and only trips are thought about here")
    return make_thoughts(task, seed=("thoughts", lesson.seed), n=lesson.traces)


def main() -> None:
    given = asked(__doc__ or "")
    config = load_config(Taught, overrides=given.settings)
    if given.verb == "make":
        with ProcessPoolExecutor(min(given.jobs, len(config.seeds)), mp_context=get_context("spawn")) as pool:
            policies = list(pool.map(partial(teach, config), config.seeds))
        how = replace(Twice.asked(given), capped=config.capped, forced=config.forced, rows=config.rows)
        ask_all(think, policies, how, config.out / FILE, jobs=min(given.jobs, len(policies)))
    print(tables(read_rows(config.out / FILE)))


if __name__ == "__main__":
    main()
