"""verifiers 0.4.0 (trace version 1): `traces.jsonl`, one episode a line, or one bare trace a line as older prime-rl wrote.

| verifiers | here |
| --- | --- |
| `run.id`, `run.work.step`, `run.work.type` | run_id, step, split (a standalone evaluation has no step) |
| `group.id`; without one, the task | group_id |
| `task.key` | prompt_id |
| `env.name` or `env.id` | env |
| `task.data.answer` | reference_answer |
| the nodes before the first sampled one | messages |
| the sampled nodes of a branch: `content`, `reasoning_content` | completion, thinking |
| `rewards` {name: score, weight}; null = not run | rewards; their weighted sum: reward |
| `token_ids`, `mask` from the first sampled token on | token_ids, loss_mask |
| `logprobs`, `trainer_logprobs`, `reference_logprobs` | logprobs_rollout, logprobs_train, logprobs_ref |
| `entropies` (only if a trainer filled them), `advantages` | entropies, advantages; their mean: advantage |
| sampled tokens, else the calls' `usage` | n_tokens |
| `stop_condition`, `is_timeout`, the last call's `finish_reason` | finish_reason |

A row is one branch: a path from the root of the message graph to a leaf. Branches of one trace share its sample_index and
carry its id as parent_id. Per-token values exist only at sampled tokens; between them, in tool and template text, they are
null. Files hold four decimals. Traces of agents that are not trained are left out. A reward is not a verdict: `correct`
is unknown unless `columns={"correct": NAME}` names the reward or metric that is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import mul
from pathlib import Path
from typing import Any

from equipoise.rollouts.readers.foreign import (
    as_list,
    as_object,
    as_text,
    first_object,
    has_keys,
    leftovers,
    lines_of,
    number,
    require,
    streaming,
    wanted,
)
from equipoise.rollouts.readers.mapping import ColumnMap, check_map, mapped
from equipoise.rollouts.readers.trace_branches import Join, branch_row, list_branches
from equipoise.rollouts.rows import Warn
from equipoise.rollouts.run import Run, RunInfo, Warnings

TRACES = "traces.jsonl"
LENGTH_STOPS = ("max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed")
PROVENANCE = {
    "reward": "weighted sum of the rewards that ran",
    "logprobs_rollout": {"kind": "unknown", "source": "inference server", "decimals": 4},
    "logprobs_train": {"kind": "unknown", "source": "trainer, before the update", "decimals": 4},
    "entropies": {
        "estimator": "trainer's policy",
        "temperature": None,
        "aggregation": "none",
        "mask": "sampled tokens",
        "decimals": 4,
    },
}


def claims(path: Path) -> bool:
    return bool(_files(path))


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    warnings = Warnings()
    named = check_map(columns)
    (file,) = require(_files(path), path, what=f"verifiers traces ({TRACES})")

    def rows(asked: Sequence[str] | None, warn: Warn) -> Iterator[dict[str, Any]]:
        samples = SampleCounter()
        for line in lines_of(file, warn):
            yield from rows_of(line, samples, named, asked, warn)

    return Run(path, info_of(first_object(file) or {}), streaming(path, rows, named, warnings), warnings=warnings)


def is_trace_line(line: Mapping[str, Any] | None) -> bool:
    return (has_keys(line, "traces", "task", "env") or has_keys(line, "nodes", "calls", "task")) if line else False


def info_of(line: Mapping[str, Any], *, source: str = "verifiers") -> RunInfo:
    trace = next(iter(_traces(line)), {})
    config = as_object(as_object(trace.get("agent")).get("config"))
    return RunInfo(
        source=source,
        source_version=as_object(trace.get("verifiers")).get("version") if source == "verifiers" else None,
        run_id=as_object(line.get("run")).get("id"),
        model=config.get("model"),
        sampling=as_object(config.get("sampling")),
        provenance=PROVENANCE,
    )


def _files(path: Path) -> list[Path]:
    file = path / TRACES if path.is_dir() else path
    return [file] if file.is_file() and is_trace_line(first_object(file)) else []


class SampleCounter:
    """The position of each rollout in its group, in file order."""

    def __init__(self) -> None:
        self._drawn: Counter[tuple[Any, ...]] = Counter()

    def next(self, *key: Any) -> int:
        self._drawn[key] += 1
        return self._drawn[key] - 1


def rows_of(
    line: Mapping[str, Any],
    samples: SampleCounter,
    named: ColumnMap,
    asked: Sequence[str] | None,
    warn: Warn,
    join: Join | None = None,
) -> Iterator[dict[str, Any]]:
    """The rows of one episode, or of one bare trace."""
    if not is_trace_line(line):
        warn("mixed-schema", "lines that are neither an episode nor a trace were skipped")
        return
    shared = _shared(line)
    traces = _traces(line)
    if not traces:
        warn("failed-episode", "episodes that ended before a model call have a row without completion")
        yield shared | {"sample_index": samples.next(*_key(shared)), "outcome": "error", "finish_reason": "error"}
    trained = [trace for trace in traces if as_object(trace.get("agent")).get("trainable", True)]
    if len(trained) < len(traces):
        warn("other-agents", "traces of agents that are not trained were left out")
    for trace in trained:
        about = dict(shared)
        if len(trained) > 1 and about["group_id"] is not None:
            about["group_id"] += f"/{as_object(trace.get('agent')).get('name')}"
        yield from _trace_rows(trace, about | {"sample_index": samples.next(*_key(about))}, named, asked, warn, join)


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("run_id", "split", "step", "group_id"))


def _shared(line: Mapping[str, Any]) -> dict[str, Any]:
    """What every row of a line has in common."""
    run, task, env = (as_object(line.get(key)) for key in ("run", "task", "env"))
    info = as_object(line.get("info"))  # the older layout keeps group and environment here
    work = as_object(run.get("work"))
    kind = work.get("type") or run.get("type")
    key = as_text(task.get("key")) or as_text(task.get("hash"))
    answer = as_object(task.get("data")).get("answer")
    step = work.get("step", run.get("step"))
    return {
        "run_id": as_text(run.get("id")),
        "split": kind if kind in ("train", "eval") else None,
        "step": step if isinstance(step, int) else None,
        "group_id": as_text(as_object(line.get("group")).get("id")) or as_text(info.get("group_id")) or key,
        "prompt_id": key,
        "env": env.get("name") or env.get("id") or info.get("env_name"),
        "reference_answer": as_text(answer),
    }


def _trace_rows(
    trace: Mapping[str, Any],
    about: Mapping[str, Any],
    named: ColumnMap,
    asked: Sequence[str] | None,
    warn: Warn,
    join: Join | None,
) -> Iterator[dict[str, Any]]:
    nodes = [as_object(node) for node in as_list(trace.get("nodes"))]
    calls = [as_object(call) for call in as_list(trace.get("calls"))]
    scored = {
        name: as_object(reward)
        for name, reward in as_object(trace.get("rewards")).items()
        if isinstance(reward, Mapping)
    }
    parts = {name: score for name, reward in scored.items() if (score := number(reward.get("score"))) is not None}
    weights = [number(scored[name].get("weight", 1.0)) for name in parts]
    settings = as_object(as_object(as_object(trace.get("agent")).get("config")).get("sampling"))
    failed = trace.get("ok") is False
    row: dict[str, Any] = dict(about) | {
        "reward": None if not parts or None in weights else sum(map(mul, parts.values(), weights)),
        "rewards": parts or None,
        "outcome": "error" if failed else None,
        "temperature": settings.get("temperature"),
        "budget": settings.get("max_tokens"),
    }
    row |= mapped({**trace, **as_object(trace.get("metrics")), **parts}, named, warn)
    if wanted(asked, "extra"):
        kept = {key: trace.get(key) for key in ("id", "stop_condition", "metrics", "info", "errors")}
        row["extra"] = leftovers({key: value for key, value in kept.items() if value}, ())
    paths = list(list_branches(nodes, warn))
    if len(paths) > 1:
        warn("branches", "rollouts with several branches have a row for each, with one sample_index")
    for turn, path in enumerate(paths):
        branch = branch_row(path, nodes, [c for c in calls if c.get("node") in path], asked, join)
        several = {"parent_id": trace.get("id"), "turn": turn} if len(paths) > 1 else {}
        yield row | branch | several | {"finish_reason": _finish(trace, branch.pop("finish_reason"), failed=failed)}


def _finish(trace: Mapping[str, Any], last: Any, *, failed: bool) -> str | None:
    stop = trace.get("stop_condition")
    if trace.get("is_timeout") or stop == "max_turns":
        return "budget"
    if failed:
        return "error"
    return "length" if stop in LENGTH_STOPS else last


def _traces(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [line] if "nodes" in line else [t for t in as_list(line.get("traces")) if isinstance(t, dict)]  # type: ignore[list-item]
