"""Run folders that grow, for tests of the live views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.rollouts.run import RunInfo
from equipoise.rollouts.writer import RunWriter


def write_log(folder: Path, lines: list[dict[str, Any]]) -> Path:
    """metrics.jsonl anew, without the writer's wait for the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def append(folder: Path, text: str) -> None:
    with open(folder / "metrics.jsonl", "a") as handle:
        handle.write(text)


def curve(steps: int, *, first: int = 1, **extra: float) -> list[dict[str, Any]]:
    """Lines of the embedded trainer's kind; entropy is 1/step, reward step/1000."""
    return [
        {"step": step, "entropy": 1 / step, "reward": step / 1000, "seconds/sample": 1.5, "seconds/update": 0.5, **extra}
        for step in range(first, first + steps)
    ]  # fmt: skip


def rollouts(
    step: int, *, prompts: int = 20, samples: int = 8, entropy: float = 1.0, seed: int = 0
) -> list[dict[str, Any]]:
    """A step's training rollouts: one group per problem, every fourth group all wrong."""
    rng = np.random.default_rng([seed, step])
    rows = []
    for p in range(prompts):
        for i in range(samples):
            right = p % 4 != 0 and i % 2 == 0
            entropies = rng.gamma(0.5, entropy, 12)
            rows.append(
                {
                    "run_id": "r", "split": "train", "step": step, "prompt_id": f"p{p}", "group_id": f"g{p}", "sample_index": i,
                    "correct": right, "reward": float(right), "answer": str(p) if right else f"{p}{rng.integers(1, 5)}",
                    "completion": f"Let me see. The answer is {p}.", "n_tokens": 12, "finish_reason": "stop",
                    "entropies": entropies.tolist(), "logprobs_rollout": (-entropies).tolist(),
                }
            )  # fmt: skip
    return rows


def writer(folder: Path, *, steps: int | None = None, **info: Any) -> RunWriter:
    settings = {} if steps is None else {"learning": {"steps": steps}}
    return RunWriter(folder, RunInfo(source="test", run_id="r", settings=settings, **info))
