"""What a step leaves behind: numbers for the log, rollouts for the record. Axes: P problems, G completions, B = P·G rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from equipoise.base import Rollout
from equipoise.shaping.shelf import BaseAnchor
from equipoise.training.collect import Batch
from equipoise.training.critique import Lesson
from equipoise.training.recipe import TrainConfig
from equipoise.training.shape import Shaped


def step_metrics(batch: Batch, shaped: Shaped) -> dict[str, float | None]:
    groups, samples = batch.groups, batch.samples
    assert groups.correct_PG is not None
    assert groups.reward_PG is not None
    assert groups.n_tokens_PG is not None
    assert groups.truncated_PG is not None
    checked_P = np.isfinite(groups.correct_PG).any(axis=1)
    right_P = np.nanmean(groups.correct_PG[checked_P], axis=1)
    n_tokens = float(samples.mask_BT.sum())
    return {
        "entropy": float(samples.entropy_BT.sum()) / n_tokens,
        "accuracy": _mean(right_P),
        "reward": _mean(groups.reward_PG[np.isfinite(groups.reward_PG)]),
        "all_wrong": _mean(right_P == 0),
        "all_right": _mean(right_P == 1),
        "distinct": float(batch.distinct_P.mean()),
        "length": float(groups.n_tokens_PG.mean()),
        "truncated": float(groups.truncated_PG.mean()),
        "bonus": float(shaped.bonus_PG.mean()),
        **{f"dropped/{reason}": float(count) for reason, count in shaped.dropped.items()},
        **shaped.moved,
    }


def extra_rollouts(
    batch: Batch, passed_over: Batch | None, lesson: Lesson | None, anchors: Sequence[BaseAnchor]
) -> dict[str, float]:
    """Completions and tokens that a step drew, where it can draw more than it learns from, or than was asked for at first.

    What the base model drew for its anchor, before the first step, counts with that.
    """
    drawn = [*batch.completions, *(() if lesson is None else lesson.refined.completions)]
    drawn += () if passed_over is None else passed_over.completions
    rollouts = len(drawn) + sum(anchor.drawn for anchor in anchors)
    n_tokens = sum(completion.n_tokens or 0 for completion in drawn) + sum(anchor.tokens_drawn for anchor in anchors)
    return {"rollouts": float(rollouts), "tokens": float(n_tokens)} | ({} if lesson is None else lesson.metrics)


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if values.size else None


def rollouts_of(
    config: TrainConfig, batch: Batch, step: int, *, split: str, temperature: float | None, shaped: Shaped | None = None
) -> list[Rollout]:
    each = len(batch.completions) // len(batch.problems)
    adv_B = None if shaped is None else (shaped.adv_PG + shaped.bonus_PG).ravel()
    extra = {} if temperature is None else {"temperature": temperature}
    return [
        Rollout(
            run_id=config.out.name,
            split=split,
            step=step,
            group_id=batch.problems[row // each].id,
            sample_index=row % each,
            problem=batch.problems[row // each],
            completion=completion,
            grade=grade,
            advantage=None if adv_B is None else float(adv_B[row]),
            extra=extra,
        )
        for row, (completion, grade) in enumerate(zip(batch.completions, batch.grades, strict=True))
    ]


def refined_of(config: TrainConfig, batch: Batch, lesson: Lesson, step: int) -> list[Rollout]:
    """Refinements by the problem that they refine, apart from the completions that no critic has seen."""
    each, refined = batch.answers_PG.shape[1], lesson.refined
    return [
        Rollout(
            run_id=config.out.name,
            split="refined",
            step=step,
            group_id=batch.problems[parent // each].id,
            sample_index=row,
            problem=replace(batch.problems[parent // each], prompt=refined.problems[row].prompt),
            completion=refined.completions[row],
            grade=refined.grades[row],
            strategy="refined",
            extra={"turn": 1, "parent_id": str(parent % each)},
        )
        for row, parent in enumerate(lesson.parents)
    ]
