"""Inspect (inspect_ai 0.3.285, log version 2): `.eval` archives and `.json` logs, or a folder of them.

| inspect | here |
| --- | --- |
| `eval.eval_id` | run_id |
| `eval.task` | env |
| `id` | prompt_id and group_id |
| `epoch` (from 1) | sample_index (from 0) |
| `input`; the messages before the first generated one | prompt; messages |
| `target` | reference_answer; one of several targets: the first |
| `output.completion`; reasoning parts of its message | completion; thinking |
| `choices[0].stop_reason`, `limit`, `error` | finish_reason |
| the evaluated model's `model_usage` | n_tokens, n_thinking |
| `scores`, one entry a scorer or `scorer/key` | rewards: C = 1, P = 0.5, I = N = 0, numbers as they are |
| the headline score, else the first | reward |
| the headline if it is a verdict, else the first verdict | correct, outcome, answer (none where match or includes give the whole reply) |
| `choices[0].logprobs` | logprobs_rollout, topk_logprobs (no ids: inspect keeps token texts, which go to extra) |

A verdict is C, I or N, true or false, or a 0 or 1 of a scorer that inspect averages as accuracy. P is a score and no
verdict. A sample with an error is unscored, not wrong. Whether log-probs are raw or processed is the provider's choice
and not in the log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError
from equipoise.files import plain, read_json
from equipoise.rollouts.readers.eval_zip import EvalZip
from equipoise.rollouts.readers.foreign import (
    as_list,
    as_object,
    as_text,
    chat_of,
    files_in,
    first_bytes,
    natural,
    require,
    streaming,
    text_of,
    wanted,
)
from equipoise.rollouts.readers.inspect_scores import answer_of, numbers_of, parts_of, verdict_of
from equipoise.rollouts.readers.mapping import check_map, mapped
from equipoise.rollouts.rows import Warn
from equipoise.rollouts.run import Run, RunInfo, Warnings

ATTACHMENT = "attachment://"
HEAD = re.compile(rb'^\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:\s*"\w+"\s*,\s*"eval"\s*:')


def claims(path: Path) -> bool:
    return bool(_logs(path))


def open(path: Path, *, columns: Mapping[str, str] | None = None) -> Run:
    warnings = Warnings()
    named = check_map(columns)
    files = require(_logs(path), path, what="inspect log (.eval or .json)")
    heads = [_Head.of(header) for header, _ in (_open_log(file, warnings, samples=False) for file in files)]

    def rows(asked: Sequence[str] | None, warn: Warn) -> Iterator[dict[str, Any]]:
        read: set[str] = set()
        for file in files:
            header, samples = _open_log(file, warn, samples=True)
            head = _Head.of(header)
            if head.eval_id in read:
                warn("same-eval", f"{file.name}: a copy of an evaluation already read was skipped")
                continue
            read |= {head.eval_id} if head.eval_id else set()
            if head.status not in ("success", None):
                warn(
                    "unfinished",
                    f"{file.name}: the evaluation's status is {head.status}; the samples it holds are read",
                )
            for sample in samples:
                yield _row(sample, head, asked, warn) | mapped({**sample, **numbers_of(parts_of(sample))}, named, warn)

    models = {head.model for head in heads}
    info = RunInfo(
        source="inspect_ai",
        source_version=heads[0].version,
        run_id=heads[0].eval_id if len(heads) == 1 else path.name,
        model=models.pop() if len(models) == 1 else None,
        sampling=heads[0].sampling,
        settings={"tasks": sorted({head.task for head in heads if head.task})},
        seed=heads[0].sampling.get("seed"),
        provenance={
            "reward": "the headline score, else the first; C 1, P 0.5, I and N 0",
            "correct": "the headline score where it is a verdict, else the first that is",
            "logprobs_rollout": {"kind": "unknown", "source": "provider"},
            "topk_logprobs": {"kind": "unknown", "source": "provider", "k": heads[0].sampling.get("top_logprobs")},
        },
    )
    return Run(path, info, streaming(path, rows, named, warnings), warnings=warnings)


@dataclass(frozen=True, slots=True)
class _Head:
    """What the header says about every sample."""

    eval_id: str | None
    task: str | None
    model: str | None
    version: str | None
    status: str | None
    sampling: Mapping[str, Any]
    headline: str | None  # name of the part that is the reward
    accuracy: frozenset[str]  # scorers whose numbers inspect averages as accuracy

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> _Head:
        about, plan, results = (as_object(header.get(key)) for key in ("eval", "plan", "results"))
        line = as_object(results.get("headline"))
        scorer, score = as_text(line.get("scorer")), as_text(line.get("score"))
        scorers = [s for s in as_list(about.get("scorers")) if isinstance(s, Mapping)]
        return cls(
            eval_id=as_text(about.get("eval_id")) or as_text(about.get("run_id")),
            task=as_text(about.get("task")),
            model=as_text(about.get("model")),
            version=as_object(about.get("packages")).get("inspect_ai"),
            status=header.get("status"),
            sampling=as_object(about.get("model_generate_config")) | as_object(plan.get("config")),
            headline=None if scorer is None else scorer if score in (None, scorer) else f"{scorer}/{score}",
            accuracy=frozenset(str(s.get("name")) for s in scorers if '/accuracy"' in json.dumps(s.get("metrics")))
            | {"exact"},
        )


def _logs(path: Path) -> list[Path]:
    if path.is_dir():
        return [p for p in sorted([*files_in(path, "*.eval"), *files_in(path, "*.json")], key=natural) if _is_log(p)]
    return [path] if path.is_file() and _is_log(path) else []


def _is_log(file: Path) -> bool:
    return file.suffix == ".eval" or (file.suffix == ".json" and HEAD.match(first_bytes(file, 4096)) is not None)


def _open_log(file: Path, warn: Warn, *, samples: bool) -> tuple[Mapping[str, Any], Iterator[Mapping[str, Any]]]:
    if file.suffix == ".eval":
        archive = EvalZip(file, warn)
        for name in ("header.json", "_journal/start.json"):  # an interrupted run has only the second
            header = archive.read_json(name) if name in archive else None
            if isinstance(header, Mapping):
                found = (archive.read_json(name) for name in archive.names("samples/"))
                return ({"status": "started"} | dict(header)), (
                    s for s in found if isinstance(s, Mapping)
                ) if samples else iter(())
        raise UsageError(f"{file} holds no header.json and no _journal/start.json: it is not an inspect log")
    log = read_json(file)
    if not isinstance(log, Mapping):
        raise UsageError(f"{file} holds a {type(log).__name__}, not an inspect log")
    return log, (s for s in as_list(log.get("samples")) if isinstance(s, Mapping))


def _row(sample: Mapping[str, Any], head: _Head, asked: Sequence[str] | None, warn: Warn) -> dict[str, Any]:
    output = as_object(sample.get("output"))
    choices = output.get("choices")
    choice = as_object(choices[0]) if isinstance(choices, list) and choices else {}
    content = _attached(as_object(choice.get("message")).get("content"), sample)
    parts = parts_of(sample)
    numbers = numbers_of(parts)
    verdict = verdict_of(parts, head.headline, head.accuracy)
    completion = None if not choice else output.get("completion") or text_of(content)
    usage = as_object(as_object(sample.get("model_usage")).get(head.model or "") or output.get("usage"))
    target = sample.get("target")
    identity = None if sample.get("id") is None else str(sample["id"])
    epoch = sample.get("epoch")
    failed = sample.get("error") is not None
    text = sample.get("input")
    row: dict[str, Any] = {
        "run_id": head.eval_id,
        "split": "eval",
        "env": head.task,
        "prompt_id": identity,
        "group_id": identity,
        "sample_index": epoch - 1 if isinstance(epoch, int) else None,
        "prompt": _attached(text, sample) if isinstance(text, str) else None,
        "messages": chat_of(_asked_messages(sample)),
        "completion": completion,
        "thinking": _thinking(content),
        "reference_answer": target[0] if isinstance(target, list) and target else target or None,
        "answer": answer_of(sample, verdict.scorer, completion),
        "outcome": "error" if failed else verdict.outcome,
        "correct": None if failed else verdict.right,
        "reward": numbers.get(head.headline or "", next(iter(numbers.values()), None)),
        "rewards": numbers or None,
        "finish_reason": _finish(sample, choice, failed=failed),
        "temperature": head.sampling.get("temperature"),
        "n_tokens": usage.get("output_tokens") if choice else None,
        "n_thinking": usage.get("reasoning_tokens") if choice else None,
    }
    tokens = _tokens(choice) if wanted(asked, "logprobs_rollout", "topk_logprobs", "extra") else []
    if tokens:
        row["logprobs_rollout"] = [token.get("logprob") for token in tokens]
        if all(isinstance(token.get("top_logprobs"), list) for token in tokens):
            row["topk_logprobs"] = [
                [as_object(top).get("logprob") for top in token["top_logprobs"]] for token in tokens
            ]
    if wanted(asked, "extra"):
        row["extra"] = _extra(sample, tokens)
    return row


def _asked_messages(sample: Mapping[str, Any]) -> list[Any] | None:
    """The messages before the first that the model generated."""
    messages = sample.get("messages")
    if not isinstance(messages, list):
        return sample["input"] if isinstance(sample.get("input"), list) else None
    generated = (i for i, m in enumerate(messages) if isinstance(m, Mapping) and m.get("source") == "generate")
    asked = messages[: next(generated, len(messages))]
    return [dict(m) | {"content": _attached(m.get("content"), sample)} for m in asked if isinstance(m, Mapping)]


def _attached(value: Any, sample: Mapping[str, Any]) -> Any:
    """Long texts may stand in `attachments`, with a reference in their place."""
    if isinstance(value, str) and value.startswith(ATTACHMENT):
        return as_object(sample.get("attachments")).get(value.removeprefix(ATTACHMENT), value)
    return value


def _thinking(content: Any) -> str | None:
    if not isinstance(content, list):
        return None
    return (
        "".join(p["reasoning"] for p in content if isinstance(p, Mapping) and isinstance(p.get("reasoning"), str))
        or None
    )


def _finish(sample: Mapping[str, Any], choice: Mapping[str, Any], *, failed: bool) -> str | None:
    if failed:
        return "error"
    limit = as_object(sample.get("limit")).get("type")
    if limit is not None:
        return "length" if limit in ("token", "context") else "budget"
    return None if choice.get("stop_reason") == "unknown" else choice.get("stop_reason")


def _tokens(choice: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = as_object(choice.get("logprobs")).get("content")
    return [t for t in content if isinstance(t, Mapping)] if isinstance(content, list) else []


def _extra(sample: Mapping[str, Any], tokens: list[Mapping[str, Any]]) -> str | None:
    kept = {key: sample[key] for key in ("metadata", "uuid", "limit", "turn_count", "total_time") if sample.get(key)}
    if sample.get("error"):
        kept["error"] = as_object(sample["error"]).get("message")
    if tokens:
        kept["tokens"] = [token.get("token") for token in tokens]
    return json.dumps(plain(kept), ensure_ascii=False, default=str) if kept else None
