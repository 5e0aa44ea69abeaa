"""TRL 1.16 (`log_completions`): `completions/completions_NNNNN.parquet`, with metrics from `trainer_state.json`.

Give the trainer's output folder, its `completions` folder or one file.

| TRL | here |
| --- | --- |
| `step` | step |
| `prompt`, `completion`: texts, or lists of messages | prompt or messages, completion (the assistant's messages) |
| row order: group after group, without an id | group_id, sample_index: rows counted off in groups of one size |
| one column a reward function | rewards |
| the sum of the weighted rewards, which is in no file | reward: see below |
| `advantage` | advantage |
| `log_extra` columns | extra, or what `columns={"reference_answer": "gold"}` makes of them |
| `log_history` | metrics |

Which columns are rewards: those with a `rewards/<name>/mean` in the log; without a log, the numbers. The group size is what
divides every run of equal prompts, never the prompt alone: a question drawn twice in one batch is two groups. The total
reward is the single function's value, or the weighted sum where the log lets the weights be recovered
(`trl_weights.py`), else unknown.

Evaluation writes into the same files and no column says so: where the log (or a row count, or a returning list of prompts)
shows it, split is unknown for that step. A file that repeats the last one (`num_iterations` > 1) is skipped. Only logging
steps have a file. There are no verdicts, right answers, token ids, log-probs, entropies or lengths; name a 0/1 reward
with `columns={"correct": "accuracy_reward"}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from equipoise.rollouts.parquet import stream_parquet
from equipoise.rollouts.readers.foreign import (
    chat_of,
    files_in,
    first_bytes,
    leftovers,
    number,
    require,
    streaming,
    text_of,
    wanted,
)
from equipoise.rollouts.readers.grouping import GroupCounter
from equipoise.rollouts.readers.mapping import ColumnMap, check_map, mapped
from equipoise.rollouts.readers.trl_plan import FIXED, File, Log, Plan
from equipoise.rollouts.rows import Warn
from equipoise.rollouts.run import Run, RunInfo, Warnings

NAME = re.compile(r"completions_\d+\.parquet")


def claims(path: Path) -> bool:
    return bool(_files(path)) or (path.is_dir() and _state(path) is not None)


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    warnings = Warnings()
    named = check_map(columns)
    files, state = _files(path), _state(path)
    require([*files, *([] if state is None else [state])], path, what="TRL completions (completions_NNNNN.parquet)")
    log = Log.read(state, warnings)
    plan = cache(lambda: Plan.of(files, log, warnings))

    def rows(asked: Sequence[str] | None, warn: Warn) -> Iterator[dict[str, Any]]:
        for file in plan().files:
            yield from _rows(file, plan(), named, asked, warn)

    info = RunInfo(
        source="trl",
        run_id=_home(path).name,
        provenance=log.curves.provenance
        | {
            "reward": "the only function's value, or the sum with weights recovered from the log; else unknown",
            "rewards": "as the functions returned them, unweighted",
            "advantage": "as logged",
        },
    )
    return Run(
        path,
        info,
        streaming(path, rows, named, warnings),
        read_metrics=lambda: map(dict, log.curves.steps),
        warnings=warnings,
    )


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if NAME.fullmatch(path.name) else []
    folder = path / "completions" if (path / "completions").is_dir() else path
    return [p for p in files_in(folder, "completions_*.parquet") if NAME.fullmatch(p.name)] if folder.is_dir() else []


def _home(path: Path) -> Path:
    """The trainer's output folder, from whatever was given of it."""
    folder = path.parent if path.is_file() else path
    return folder.parent if folder.name == "completions" else folder


def _state(path: Path) -> Path | None:
    """The run's own trainer_state.json, else that of its last checkpoint."""
    home = _home(path)
    found = [
        p
        for p in (home / "trainer_state.json", *files_in(home, "checkpoint-*/trainer_state.json")[::-1])
        if p.is_file()
    ]
    return next((p for p in found if b'"log_history"' in first_bytes(p, 64 * 1024)), None)


def _rows(
    file: File, plan: Plan, named: ColumnMap, asked: Sequence[str] | None, warn: Warn
) -> Iterator[dict[str, Any]]:
    needed = {"prompt", "advantage", *file.functions, *(name.split(".")[0] for name in named.values()), *named.values()}
    if wanted(asked, "completion"):
        needed.add("completion")
    chosen = None if wanted(asked, "extra") else sorted(needed)
    counter = GroupCounter(plan.size)
    digests = iter(file.prompts_B.tolist())
    for batch in stream_parquet(file.path, chosen, warn=warn):
        for source in batch.to_pylist():
            group, index = counter.next(next(digests, None))
            prompt, completion = source.get("prompt"), source.get("completion")
            parts = {name: value for name in file.functions if (value := number(source.get(name))) is not None}
            row = {
                "split": None if file.step in plan.evaluated else "train",
                "step": file.step,
                "group_id": str(group),
                "sample_index": index,
                "prompt": prompt if isinstance(prompt, str) else None,
                "messages": None if isinstance(prompt, str) else chat_of(prompt),
                "completion": completion if isinstance(completion, str) else _written(completion),
                "reward": _total(parts, file.functions, plan.weights),
                "rewards": parts or None,
                "advantage": source.get("advantage"),
            }
            if wanted(asked, "extra"):
                several = (
                    {"completion_messages": completion} if isinstance(completion, list) and len(completion) > 1 else {}
                )
                row["extra"] = leftovers(source | several, (*FIXED, *file.functions))
            yield row | mapped(source, named, warn)


def _written(completion: Any) -> str | None:
    """What the model wrote of a list of messages: the assistant's, without tool results."""
    if not isinstance(completion, list):
        return None
    messages = [message for message in completion if isinstance(message, Mapping)]
    own = [message for message in messages if message.get("role") == "assistant"] or messages
    return "\n".join(text_of(message.get("content")) or "" for message in own)


def _total(parts: Mapping[str, float], functions: Sequence[str], weights: Sequence[float] | None) -> float | None:
    if weights is None or not parts:
        return None
    return sum(weight * parts[name] for name, weight in zip(functions, weights, strict=True) if name in parts)
