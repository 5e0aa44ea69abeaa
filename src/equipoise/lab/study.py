"""A study: arms × seeds on the same problems with equal rollouts, one folder of results. Resumable at any moment.

OUT/  results.json  README.md     the numbers, and one page of them
      frontier.svg  entropy.svg   its figures
      problems.parquet            what every policy did on every problem at every temperature
      runs/base  runs/ARM-SEED/   the runs; that of the base does the supervised training, where there is any
      tune/…                      what learning rate and temperature were chosen by
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError
from equipoise.files import atomic_write, make_folder, plain, read_json
from equipoise.lab.study_config import BASE, StudyConfig
from equipoise.lab.study_figures import write_figures
from equipoise.lab.study_outcomes import Outcomes, write_tables
from equipoise.lab.study_page import summary_rows, write_page
from equipoise.lab.study_results import Finished, assemble
from equipoise.lab.study_run import Job, base_job, is_finished, run_job, steps_logged, supervised_run, write_job
from equipoise.lab.study_tune import best, choose_rates, choose_temperatures
from equipoise.measures.html import html_table
from equipoise.text.display import many
from equipoise.training.notes import chosen_warnings

Say = Callable[[str], None]
Plan = list[tuple[str, int | None, Job]]  # arm, seed and what to do
LOOK_AGAIN = 0.2  # seconds between two looks at the processes


class OutOfTime(Exception):
    """The minutes of a study are over; runs that were under way go on from their checkpoints when it is started again."""


@dataclass(frozen=True, slots=True)
class Studied:
    """A finished study: its folder and what its results.json holds."""

    folder: str
    results: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return dict(self.results)

    def _repr_html_(self) -> str:
        heads, rows = summary_rows(self.results, sure="")
        return html_table(heads, rows, title=f"{self.results['about'] or 'Study'} ({self.folder})")


def study(
    config: StudyConfig,
    *,
    jobs: int = 1,
    minutes: float | None = None,
    command: str = "",
    say: Say = lambda line: None,
    tick: Say = lambda line: None,
) -> Studied:
    """Run what is not finished yet, `jobs` runs side by side, and write the results. `tick` hears of every training step.

    After `minutes` training stops, and the results are those of the seeds that all arms have finished.
    """
    started, config = time.perf_counter(), config.chosen()
    try:
        make_folder(config.out)
    except OSError as problem:
        raise UsageError(f"cannot write a study into {config.out}: {problem.strerror or problem}") from problem
    for words, arms in _warnings(config).items():
        say(f"{words} ({', '.join(arms)})")

    def run_all(jobs_of: list[Job]) -> None:
        _run_all(jobs_of, jobs, say, tick)

    def in_time(line: str) -> None:
        if minutes is not None and time.perf_counter() - started > 60 * minutes:
            raise OutOfTime
        tick(line)

    def train_all(jobs_of: list[Job]) -> None:
        _run_all(jobs_of, jobs, say, in_time)

    base = base_job(config, config.out / "runs" / BASE, config.evaluation, "test")
    planned: Plan = []
    try:
        if config.sft is not None:
            train_all([base])  # all others begin with what it makes
        rates = choose_rates(config, train_all) if config.tune and config.tune.lr else {}
        planned = _plan(config, base, {arm: best(tried)["lr"] for arm, tried in rates.items()})
        train_all([job for arm, _, job in planned if job.trained is None and (arm != BASE or config.sft is None)])
    except OutOfTime:
        seeds = _whole_seeds(planned)
        if not seeds:
            raise UsageError(
                f"no seed is finished after {minutes:g} minutes; finished runs are kept, the same command goes on"
            ) from None
        say(f"{minutes:g} minutes are over: results of {many(len(seeds), 'seed')}, {', '.join(map(str, seeds))}")
        config = config.model_copy(update={"seeds": seeds})
        planned = [(arm, seed, job) for arm, seed, job in planned if seed is None or seed in seeds]
        command = f"{command} {shlex.quote(f'seeds={list(seeds)}')}" if command else ""
    if made := [job for _, _, job in planned if job.trained is not None]:
        run_all(made)  # of the weights of those before
    tuned = choose_temperatures(config, planned, rates, run_all) if config.tune else None
    runs = [Finished(arm, seed, job, Outcomes.load(job.folder / "outcomes.parquet")) for arm, seed, job in planned]
    order = [BASE, *config.arms]
    runs.sort(key=lambda run: order.index(run.arm))
    about = {
        "about": config.about,
        "command": command or None,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("equipoise", "torch", "numpy")},
        "device": sorted({read_json(run.job.folder / "finished.json")["device"] for run in runs}),
        "seconds": round(time.perf_counter() - started, 1),  # of this call; finished runs are not run again
    }
    results = plain(assemble(config, runs, tuned=tuned, about=about))
    write_tables((run.outcomes.table(run.arm, run.seed) for run in runs), config.out / "problems.parquet")
    with atomic_write(config.out / "results.json") as handle:
        handle.write((json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    logs = {(run.arm, run.seed): list(steps_logged(run.job.folder)) for run in runs if run.trains}
    write_figures(results, logs, config.out)
    write_page(results, config.out / "README.md")
    return Studied(str(config.out), results)


def _warnings(config: StudyConfig) -> dict[str, list[str]]:
    """What the linter says of what the arms chose, and of which; the page has all that it says."""
    told: dict[str, list[str]] = {}
    for arm in config.arms:
        for found in chosen_warnings(config.train_config(arm, seed=0, out=config.out)):
            told.setdefault(f"{found.verdict}: {found.method}: {found.why}", []).append(arm)
    return told


def _plan(config: StudyConfig, base: Job, lr: Mapping[str, float]) -> Plan:
    """The base model, then every seed of every arm; seeds outside, so that a study that is stopped has whole comparisons."""
    home = config.out / "runs"
    planned: Plan = [(BASE, None, base)]
    jobs = {
        (arm, seed): Job(
            config=config.train_config(arm, seed=seed, out=home / f"{arm}-{seed}", lr=lr.get(config.trained_by(arm))),
            begins=supervised_run(config),
            trained=home / f"{config.arms[arm].of}-{seed}" if config.arms[arm].of else None,
            blend=config.arms[arm].blend,
            ema=config.arms[arm].ema,
            look=config.evaluation,
            base_temperature=config.headline,
        )
        for seed in config.seeds
        for arm in config.arms
    }
    return planned + [(arm, seed, job) for (arm, seed), job in jobs.items()]


def _whole_seeds(planned: Plan) -> tuple[int, ...]:
    """The seeds that every arm which trains has finished, in their order; none without the base model."""
    under_way = {seed for _, seed, job in planned if job.trained is None and not is_finished(job)}
    seeds = dict.fromkeys(seed for _, seed, _ in planned if seed is not None)
    return () if None in under_way else tuple(seed for seed in seeds if seed not in under_way)


def _run_all(jobs: list[Job], n: int, say: Say, tick: Say) -> None:
    todo = [job for job in jobs if not is_finished(job)]
    if len(todo) < len(jobs):
        say(f"finished already: {len(jobs) - len(todo)} of {many(len(jobs), 'run')}")
    started = time.perf_counter()

    def done(count: int, job: Job) -> None:
        left = (time.perf_counter() - started) / count * (len(todo) - count)
        say(f"{count}/{len(todo)} {job.folder.name} finished, about {_clock(left)} left")

    if n == 1:
        for count, job in enumerate(todo, start=1):
            write_job(job)
            run_job(job, lambda line, job=job: tick(f"{job.folder.name}: {line}"))  # type: ignore[misc]
            done(count, job)
    else:
        _side_by_side(todo, n, done, tick)


def _side_by_side(todo: list[Job], n: int, done: Callable[[int, Job], None], tick: Say) -> None:
    """Each run in a process of its own, which goes on from its checkpoint if this one dies.

    A setting that is refused stops all of them: others may have it too. After any other failure, memory that ran out say, no more are
    begun, and those under way come to their end.
    """
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // n)))
    waiting, running, count = list(todo), dict[subprocess.Popen[bytes], Job](), 0
    failure: ChildProcessError | None = None
    try:
        while waiting or running:
            while waiting and len(running) < n:
                job = waiting.pop(0)
                path = write_job(job)
                with open(job.folder / "log.txt", "ab") as log:
                    call = [sys.executable, "-m", "equipoise.lab.study_run", str(path)]
                    running[subprocess.Popen(call, stdout=log, stderr=log, env=environment)] = job
            time.sleep(LOOK_AGAIN)
            for process in [process for process in running if process.poll() is not None]:
                job = running.pop(process)
                if process.returncode:
                    told = f"the run {job.folder} failed: {_last_line(job.folder / 'log.txt')}; finished runs are kept, the same command goes on"
                    if process.returncode == 2:
                        raise UsageError(told)
                    failure, waiting = failure or ChildProcessError(told), []
                    continue
                count += 1
                done(count, job)
            tick(", ".join(job.folder.name for job in running.values()))
        if failure is not None:
            raise failure
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it said nothing"


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
