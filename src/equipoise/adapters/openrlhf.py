"""Rollouts out of OpenRLHF (read: 0.11.2), which saves none. It has no seam for a loss or an advantage: ppo and gspo are built in.

    # reward.py, given to OpenRLHF as --reward.remote_url reward.py (--remote_rm_url before 0.11)
    from equipoise.adapters.openrlhf import recorded

    @recorded("rollouts.jsonl")
    def reward_func(queries, prompts, labels, **kwargs):
        …

writes a line per completion, and `equipoise diagnose rollouts.jsonl` reads them.

| OpenRLHF | here |
| --- | --- |
| `prompts`, `queries` behind the prompt, `labels` | prompt, completion, reference_answer |
| `rewards`, `scores` of what the function returns | reward, correct where it is 0 or 1 |

Groups are the completions of one prompt: OpenRLHF tells the function of no step, so that a prompt drawn twice is one larger group.
Several workers append to one file, a line in one write each, on one machine; on many, let the path name the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from equipoise.errors import UsageError
from equipoise.files import append_lines
from equipoise.rollouts.rows import stable_id

RewardFunction = Callable[..., Any]


def recorded(path: str | Path) -> Callable[[RewardFunction], RewardFunction]:
    """A reward function that also writes what it scored. What it returns is untouched."""

    def wrap(reward_func: RewardFunction) -> RewardFunction:
        @wraps(reward_func)
        def scored(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **more: Any) -> Any:
            result = reward_func(queries, prompts, labels, **more)
            rewards = _floats(result["rewards"] if isinstance(result, dict) else result, len(queries))
            scores = _floats(result.get("scores", rewards) if isinstance(result, dict) else rewards, len(queries))
            rows = zip(queries, prompts, labels, rewards, scores, strict=True)
            append_lines(Path(path), [_row(*row) for row in rows])
            return result

        return scored

    return wrap


def _row(query: str, prompt: str, label: Any, reward: float, score: float) -> dict[str, Any]:
    return {
        "prompt_id": stable_id(prompt, str(label)),
        "prompt": prompt,
        "completion": query.removeprefix(prompt),
        "reference_answer": None if label is None else str(label),
        "reward": reward,
        "correct": bool(score) if score in (0.0, 1.0) else None,
    }


def _floats(values: Any, n: int) -> list[float]:
    numbers = [float(value) for value in values]
    if len(numbers) != n:
        raise UsageError(
            f"the reward function returned {len(numbers)} rewards for {n} completions: one for each is needed"
        )
    return numbers
