"""The policies that a study has trained, each asked the same things: what every finding about them begins with.

    python -m benchmarks.findings.NAME                        the table, from the committed rows
    python -m benchmarks.findings.NAME make [key=value…]      train and ask what is not there yet, write the rows, print the table

`key=value` replaces a setting of the study's file: base.device=cpu seeds=[0] base.learning.steps=2 out=/tmp/trial. Training goes on where
it was stopped, as a study does.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.config import load_config
from equipoise.files import atomic_write, make_folder
from equipoise.lab.study_config import BASE, StudyConfig

STUDIES = Path(__file__).resolve().parents[2] / "studies"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Policy:
    """The base model of a study, or what an arm made of it with a seed."""

    arm: str
    seed: int | None
    model: str  # as `open_model` takes it
    task: str
    device: str
    max_tokens: int

    @property
    def name(self) -> str:
        return self.arm if self.seed is None else f"{self.arm}-{self.seed}"


Ask = Callable[[Policy, Any], list[Row]]
How = TypeVar("How", bound="Asking")


@dataclass(frozen=True, slots=True)
class Asking:
    """How much every policy is asked; findings have their own defaults. `tune` problems of the tuning split only choose."""

    problems: int = 256
    tune: int = 64
    samples: int = 16
    temperatures: tuple[float, ...] = (0.3, 0.6, 0.8, 1.0, 1.3, 1.6)

    @classmethod
    def asked(cls: type[How], given: argparse.Namespace) -> How:
        """As the command line has it, where it says something."""
        said = {"problems": given.problems, "samples": given.samples, "temperatures": given.temperatures}
        chosen: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        if "temperatures" in chosen:
            chosen["temperatures"] = tuple(chosen["temperatures"])
        if "problems" in chosen:
            chosen["tune"] = max(8, chosen["problems"] // 4)
        return cls(**chosen)


def asked(
    about: str,
    *,
    verbs: Sequence[str] = ("make",),
    flags: Sequence[str] = (),
    numbers: Mapping[str, int] = MappingProxyType({}),
) -> argparse.Namespace:
    """What the command line says: a verb or none, settings of the study, how many processes, a finding's own words."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "words", nargs="*", metavar="make | KEY=VALUE", help="make: train and ask; settings in place of the study's"
    )
    side_by_side = min(12, os.cpu_count() or 1)
    parser.add_argument(
        "--jobs", type=int, default=side_by_side, help="runs side by side, each in a process of its own"
    )
    parser.add_argument("--problems", type=int, help="problems that every policy is asked")
    parser.add_argument("--samples", type=int, help="answers to each")
    parser.add_argument("--temperatures", type=float, nargs="+", help="at which every policy is asked")
    for flag in flags:
        parser.add_argument(f"--{flag}", action="store_true")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_intermixed_args()
    given.verb = next((word for word in given.words if word in verbs), None)
    given.settings = [word for word in given.words if "=" in word]
    if len(given.settings) + (given.verb is not None) < len(given.words):
        parser.error(f"use {' or '.join(verbs)} once, and settings as key=value")
    return given


def load_study(name: str, settings: Sequence[str] = ()) -> StudyConfig:
    """A study by its file's name. Of several studies `two-loops:seeds=[0]` is for one of them, `seeds=[0]` for all."""
    own = []
    for head, colon, tail in (word.partition(":") for word in settings):
        if not colon or "=" in head:
            own.append(f"{head}{colon}{tail}")
        elif head == name:
            own.append(tail)
    return load_config(StudyConfig, path=STUDIES / f"{name}.toml", overrides=own).chosen()


def run_study(config: StudyConfig, *, jobs: int) -> None:
    """Train what is not trained yet and write the study's own results."""
    from equipoise.lab.study import study

    study(config, jobs=jobs, command=" ".join(["python", "-m", *_called()]), say=say)


def train_base(config: StudyConfig) -> None:
    """The supervised training of a study whose base model is asked something before the arms train."""
    from equipoise.lab.study_run import base_job, is_finished, run_job, write_job

    job = base_job(config, config.out / "runs" / BASE, config.evaluation, "test")
    if config.sft is not None and not is_finished(job):
        write_job(job)
        run_job(job, say)


def policies_of(config: StudyConfig) -> list[Policy]:
    """The base model first, then every seed of every arm that trains."""

    def policy(arm: str, seed: int | None, model: str) -> Policy:
        run = config.base
        return Policy(arm, seed, model, run.task, run.device, run.sampling.max_tokens)

    runs = config.out / "runs"
    base = config.base.model if config.sft is None else str(runs / BASE)
    trained = [
        policy(arm, seed, str(runs / f"{arm}-{seed}"))
        for arm in config.arms
        if not config.arms[arm].of
        for seed in config.seeds
    ]
    return [policy(BASE, None, base), *trained]


def policies_made(config: StudyConfig) -> list[Policy]:
    """Every seed of every arm that looks at weights made of another's, each written where `open_model` takes it."""
    from equipoise.lab.study_run import take_weights
    from equipoise.models.checkpoint import save_gpt
    from equipoise.training.opening import open_model

    base, found = policies_of(config)[0], []
    for arm, made in config.arms.items():
        for seed in config.seeds if made.of else ():
            run, home = (config.out / "runs" / f"{name}-{seed}" for name in (made.of, arm))
            loaded = open_model(base.model).loaded
            step = config.train_config(arm, seed=seed, out=run).learning.steps
            take_weights(loaded.model, run, step=step, ema=made.ema, blend=made.blend)
            path = home / "policy.safetensors"  # beside its outcomes
            make_folder(home)
            save_gpt(path, loaded.model, loaded.tokens)
            found.append(replace(base, arm=arm, seed=seed, model=str(path)))
    return found


def ask_all(ask: Ask, policies: Sequence[Policy], how: Any, path: Path, *, jobs: int) -> None:
    """Every policy's rows, with its arm and seed, into one file. `ask` is a function of a module: other processes import it."""
    started = time.perf_counter()
    if jobs == 1:
        found = [ask(policy, how) for policy in policies]
    else:
        with ProcessPoolExecutor(min(jobs, len(policies)), mp_context=get_context("spawn")) as pool:
            found = list(pool.map(ask, policies, [how] * len(policies)))
    named = [
        {"arm": policy.arm, "seed": policy.seed, **row}
        for policy, rows in zip(policies, found, strict=True)
        for row in rows
    ]
    write_rows(path, named)
    say(f"{len(policies)} policies asked in {time.perf_counter() - started:.0f} s: {path}")


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """All columns that any row has; None where one has it not."""
    names = dict.fromkeys(name for row in rows for name in row)
    make_folder(path.parent)
    with atomic_write(path) as handle:
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), handle, compression="zstd")


def read_rows(path: Path) -> list[Row]:
    return list(pq.read_table(path).to_pylist())


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _called() -> list[str]:
    module = Path(sys.argv[0]).stem
    return [f"benchmarks.findings.{module}", *sys.argv[1:]]
