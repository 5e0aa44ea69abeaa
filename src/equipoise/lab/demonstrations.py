"""Rollouts as lines of a supervised training set."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from equipoise.base import Completion, Rollout
from equipoise.errors import UsageError
from equipoise.files import atomic_write, plain

_TRACE = ("critique", "turn", "parent_id")  # of `extra`: what else a record holds may give the answer away


def as_demonstration(rollout: Rollout) -> dict[str, Any]:
    """`prompt` and `completion` as TRL's SFTTrainer takes them: two texts, or two lists of messages. No reference answer."""
    problem, text = rollout.problem, rollout.completion.text
    if text is None:
        raise UsageError(f"a completion of problem {problem.id} has no text, so that nothing can be learnt from it")
    if isinstance(problem.prompt, str):
        row: dict[str, Any] = {"prompt": problem.prompt, "completion": text}
    else:
        row = {
            "prompt": [dict(message) for message in problem.prompt],
            "completion": [{"role": "assistant", "content": text}],
        }
    row |= {
        "prompt_id": problem.id,
        "env": problem.env,
        "source": rollout.strategy,
    }
    if rollout.completion.thinking is not None:
        row["thinking"] = rollout.completion.thinking
    return row | {name: rollout.extra[name] for name in _TRACE if name in rollout.extra}


def write_demonstrations(path: Path, rollouts: Iterable[Rollout]) -> int:
    """One JSON line per rollout, under its name only when complete. How many there are."""
    count = 0
    with atomic_write(path) as handle:
        for rollout in rollouts:
            line = json.dumps(plain(as_demonstration(rollout)), ensure_ascii=False, allow_nan=False) + "\n"
            handle.write(line.encode("utf-8", "replace"))  # model text may hold half a character
            count += 1
    return count


def normal_text(completion: Completion) -> str | None:
    """What two copies of one solution share: thinking and text, spaces apart. None: there is no text."""
    if completion.text is None:
        return None
    return " ".join(f"{completion.thinking or ''} {completion.text}".split())
