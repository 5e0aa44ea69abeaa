"""What has to be known of all of TRL's files before the first row: group size, reward functions and weights, repeats."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from equipoise.errors import UsageError
from equipoise.files import read_json
from equipoise.rollouts.parquet import column_types, open_parquet, stream_parquet
from equipoise.rollouts.readers.curves import Curves, metrics_of_rows
from equipoise.rollouts.readers.foreign import number, number_in
from equipoise.rollouts.readers.grouping import GroupCounter, group_size, run_lengths, size_by_advantages
from equipoise.rollouts.readers.trl_weights import StepRewards, recover_weights
from equipoise.rollouts.rows import Warn

FIXED = ("step", "prompt", "completion", "advantage")
REWARD_KEY = re.compile(r"(?:eval_)?rewards/(.+)/mean")


@dataclass(frozen=True, slots=True)
class Log:
    """What trainer_state.json says; empty where there is none."""

    curves: Curves
    known: bool
    functions: frozenset[str]  # reward functions
    evaluated: frozenset[int]  # steps at which an evaluation ran
    trained: Mapping[int, Mapping[str, Any]]  # the training record of a step

    @classmethod
    def read(cls, state: Path | None, warn: Warn) -> Log:
        history: list[Any] = []
        if state is not None:
            try:
                document = read_json(state)
                history = document.get("log_history", []) if isinstance(document, dict) else []
            except UsageError as problem:
                warn("bad-log", f"{problem}; the run is read without its log")
        records = [record for record in history if isinstance(record, dict)] if isinstance(history, list) else []
        keys = [(record.get("step"), key) for record in records for key in record]
        return cls(
            curves=metrics_of_rows(records, warn=warn, tool="trl"),
            known=bool(records),
            functions=frozenset(found[1] for _, key in keys if (found := REWARD_KEY.fullmatch(key))),
            evaluated=frozenset(step for step, key in keys if isinstance(step, int) and key.startswith("eval_")),
            trained={r["step"]: r for r in records if isinstance(r.get("step"), int) and "loss" in r},
        )


@dataclass(frozen=True, slots=True)
class File:
    """One file without its texts. Axes: B rows, F reward functions."""

    path: Path
    step: int | None
    functions: tuple[str, ...]
    prompts_B: np.ndarray  # a digest of each prompt
    rewards_BF: np.ndarray
    advantage_B: np.ndarray

    @property
    def numbers(self) -> bytes:
        return self.prompts_B.tobytes() + self.rewards_BF.tobytes() + self.advantage_B.tobytes()


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to be known of all files before the first row."""

    files: list[File]  # without repeated ones
    size: int | None  # of a group
    weights: tuple[float, ...] | None  # one a reward function
    evaluated: frozenset[int | None]  # steps whose file may hold evaluation rows

    @classmethod
    def of(cls, paths: Sequence[Path], log: Log, warn: Warn) -> Plan:
        files = _without_repeats(_readable(paths, log, warn), log, warn)
        evaluated = _evaluated(files, log, warn)
        pure = [file for file in files if file.step not in evaluated] or files
        size = group_size(run_lengths(file.prompts_B.tolist()) for file in pure)
        if size is None and files:
            warn("uneven-groups", "no group size divides all runs of equal prompts: each run is taken as one group")
        elif size is not None:
            size = size_by_advantages(size, [file.advantage_B.tolist() for file in pure])
        return cls(files, size, _weights(pure, size, log, warn), evaluated)


def _readable(paths: Sequence[Path], log: Log, warn: Warn) -> list[File]:
    """The files that can be read. One that cannot is passed over where there are others: it may be being written."""
    files, problems = [], []
    for path in paths:
        try:
            files.append(_outline(path, log, warn))
        except UsageError as problem:
            problems.append(problem)
    if problems and not files:
        raise problems[0]
    for found in problems:
        warn("bad-file", f"{found}; the other files are read")
    return files


def _outline(path: Path, log: Log, warn: Warn) -> File:
    with open_parquet(path) as stored:
        schema = column_types(stored, path)
    missing = {"prompt", "completion"} - set(schema.names)
    if missing:
        raise UsageError(f"{path} has no column {' and '.join(sorted(missing))}: it is not a TRL completions file")
    functions = _functions(schema, log, warn)
    prompts: list[int] = []
    numbers: dict[str, list[Any]] = {name: [] for name in (*functions, "advantage", "step")}
    for batch in stream_parquet(path, ["prompt", *numbers], warn=warn):
        prompts += [_digest(prompt) for prompt in batch.column("prompt").to_pylist()]
        for name, values in numbers.items():
            known = name in batch.schema.names
            values += [number(v) for v in batch.column(name).to_pylist()] if known else [None] * batch.num_rows
    steps = {int(step) for step in numbers["step"] if step is not None}
    if len(steps) > 1:
        warn(
            "several-steps",
            f"{path.name} holds {len(steps)} steps: TRL writes one a file, so groups may be cut wrongly",
        )
    return File(
        path=path,
        step=min(steps, default=number_in(path.stem)),
        functions=functions,
        prompts_B=np.array(prompts, dtype=np.uint64),
        rewards_BF=np.array([numbers[f] for f in functions], dtype=np.float64).T.reshape(len(prompts), len(functions)),
        advantage_B=np.array(numbers["advantage"], dtype=np.float64),
    )


def _functions(schema: pa.Schema, log: Log, warn: Warn) -> tuple[str, ...]:
    """The reward functions' columns."""
    between = [column for column in schema if column.name not in FIXED]
    if log.functions:
        return tuple(column.name for column in between if column.name in log.functions)
    guessed = tuple(column.name for column in between if pa.types.is_floating(column.type))
    if guessed:
        warn(
            "guessed-rewards",
            f"no log names the reward functions: the columns of numbers are taken as such ({', '.join(guessed)})",
        )
    return guessed


def _digest(prompt: Any) -> int:
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _without_repeats(files: list[File], log: Log, warn: Warn) -> list[File]:
    """The files that hold new completions: a batch used for several updates is written again at each of them."""
    kept: list[File] = []
    for file in files:
        fresh = "reward" in log.trained.get(file.step or 0, {})  # logged only when a batch was generated
        if kept and not fresh and file.numbers == kept[-1].numbers and _completions(file) == _completions(kept[-1]):
            warn("reused-batch", f"{file.path.name} repeats the completions of {kept[-1].path.name} and was skipped")
        else:
            kept.append(file)
    return kept


def _completions(file: File) -> bytes:
    digest = hashlib.blake2b()
    for batch in stream_parquet(file.path, ["completion"]):
        digest.update(json.dumps(batch.column("completion").to_pylist(), default=str).encode("utf-8", "surrogatepass"))
    return digest.digest()


def _evaluated(files: Sequence[File], log: Log, warn: Warn) -> frozenset[int | None]:
    """Steps whose file is not, or may not be, training alone."""
    if log.known:
        found: set[int | None] = {file.step for file in files if file.step in log.evaluated}
        reason = "an evaluation was logged at that step"
    else:
        counts = Counter(len(file.prompts_B) for file in files)
        usual = max(counts, key=lambda n: counts[n], default=0)
        found = {file.step for file in files if len(file.prompts_B) != usual}
        reason = "its number of rows differs from the other files'"
        if not found:
            lists = Counter(file.prompts_B.tobytes() for file in files)
            returning = [prompts for prompts, n in lists.items() if n > 1]
            if len(returning) == 1 and len(lists) > 1:  # one list that comes back among lists that do not: a test set
                found = {file.step for file in files if file.prompts_B.tobytes() == returning[0]}
                reason = "its list of prompts comes back, as an evaluation's does"
    if found:
        shown = ", ".join(str(step) for step in sorted(found, key=lambda step: step or 0)[:6])
        warn(
            "evaluation-rows",
            f"evaluation overwrites TRL's training files: step {shown} is of unknown split, since {reason}",
        )
    return frozenset(found)


def _weights(files: Sequence[File], size: int | None, log: Log, warn: Warn) -> tuple[float, ...] | None:
    names = files[0].functions if files else ()
    if any(file.functions != names for file in files):
        warn("mixed-schema", "files differ in their reward columns, so the total reward is unknown")
        return None
    if len(names) < 2:
        return (1.0,) * len(names)
    weights = recover_weights([step for file in files if (step := _step_rewards(file, size, log)) is not None])
    if weights is None:
        warn(
            "no-total-reward",
            f"{len(names)} reward functions and no way to know their weights: reward is unknown; name one with columns={{'reward': '{names[0]}'}}",
        )
    else:
        terms = " + ".join(f"{w:g} {name}" for w, name in zip(weights, names, strict=True))
        warn("recovered-weights", f"reward is {terms}, with weights recovered from the logged means and advantages")
    return weights


def _step_rewards(file: File, size: int | None, log: Log) -> StepRewards | None:
    """The step's rewards, where the log speaks of exactly these rows."""
    record = log.trained.get(file.step or 0, {})
    logged = number(record.get("reward"))
    if logged is None or np.isnan(file.advantage_B).any():
        return None
    for name, rewards_B in zip(file.functions, file.rewards_BF.T, strict=True):
        mean = number(record.get(f"rewards/{name}/mean"))
        known = rewards_B[~np.isnan(rewards_B)]
        if mean is None or not known.size or abs(float(known.mean()) - mean) > 1e-4 * max(1.0, abs(mean)):
            return None
    counter = GroupCounter(size)
    groups = np.array([counter.next(prompt)[0] for prompt in file.prompts_B.tolist()])
    return StepRewards(file.rewards_BF, file.advantage_B, groups, logged)
