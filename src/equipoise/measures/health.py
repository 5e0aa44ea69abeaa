"""Is there still a gradient, and are the rollouts sound? Groups, truncation, length and degenerate texts.

A group whose rewards are all equal gives no gradient under any group-relative advantage. Axes: R rollouts, N groups, P problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.answers import AnswerTable
from equipoise.measures.arms import Arm, Spread, Window, arms_of, summarise
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.logged import logged_estimates
from equipoise.measures.means import WindowMeans, problem_means
from equipoise.measures.prompts import group_rows
from equipoise.text.degenerate import FLAGS

EQUAL = 1e-6  # rewards closer than this, for their size, are one reward: summed floats differ in the last digits
LOGGED = {"dead_groups": "group_zero_std_frac", "truncated": "truncated_frac", "length": "length_mean"}


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """One row per group of two or more scored rollouts."""

    prompt_N: np.ndarray
    size_N: np.ndarray
    dead_N: np.ndarray  # 1: all rewards equal
    all_right_N: np.ndarray  # nan where a verdict is unknown
    all_wrong_N: np.ndarray


def count_groups(table: AnswerTable) -> GroupCounts:
    """Groups are the rollouts that share run, split, condition, step and group id; without rewards, verdicts stand in."""
    score = table.numbers["reward"] if table.has("reward") else table.correct
    rows = np.flatnonzero(np.isfinite(score) & (table.codes["group_id"] >= 0) & (table.prompt_R >= 0))
    keys = [table.codes[name][rows] for name in ("run_id", "split", "strategy", "group_id")]
    first, index = group_rows([*keys, *(table.numbers[name][rows] for name in ("step", "budget", "temperature"))])
    size = np.bincount(index, minlength=len(first))
    score, right = score[rows], table.correct[rows]
    highest, lowest = np.full(len(size), -np.inf), np.full(len(size), np.inf)
    np.maximum.at(highest, index, score)
    np.minimum.at(lowest, index, score)
    known = np.bincount(index, weights=np.isfinite(right), minlength=len(size)) == size
    n_right = np.bincount(index, weights=np.nan_to_num(right), minlength=len(size))
    kept = size > 1
    return GroupCounts(
        table.prompt_R[rows][first][kept],
        size[kept],
        (highest - lowest <= EQUAL * np.maximum(1, np.abs(highest)))[kept].astype(float),
        np.where(known, n_right == size, np.nan)[kept],
        np.where(known, n_right == 0, np.nan)[kept],
    )


def estimate_health(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Dead groups, effective samples, truncation, length and degenerate texts, in the last and first steps."""
    results: list[Estimate] = []
    for arm in arms_of(evidence.answers, None if baseline is None else baseline.answers):
        results += _of_arm(arm, evidence, baseline)
    measured = {number.name for number in results}
    for name, logged in LOGGED.items():
        if name not in measured:
            results += [_renamed(number, logged, name) for number in logged_estimates(logged, evidence.metrics)]
    if not any(number.name == "dead_groups" for number in results):
        results.append(Estimate("dead_groups", None, missing="rewards and group ids (columns reward, group_id)"))
    return results


def _renamed(number: Estimate, logged: str, name: str) -> Estimate:
    number = replace(number, name=number.name.replace(logged, name))
    if number.name not in ("dead_groups", "truncated") or number.low is None or number.high is None:
        return number
    return replace(number, low=max(0.0, number.low), high=min(1.0, number.high))  # a share


def _of_arm(arm: Arm, evidence: Evidence, baseline: Evidence | None) -> list[Estimate]:
    means = WindowMeans.of(arm, evidence, baseline, _per_problem)
    results = []
    for name in means.names():
        bounds = (0.0, np.inf) if name == "length" else (0.0, 1.0)
        spread = Spread(name, means.of_name(name), HOW[name], "not recorded", "the same columns", bounds)
        results += summarise(spread, arm)
    return [number for number in results if number.value is not None]


HOW = {
    "dead_groups": "share of a problem's groups whose rewards are all equal",
    "all_wrong": "share of a problem's groups without a right rollout",
    "all_right": "share of a problem's groups with right rollouts only",
    "effective_samples": "share of a problem's rollouts in groups whose rewards differ",
    "truncated": "share of a problem's rollouts cut at the length limit",
    "length": "tokens of a problem's rollouts, their mean",
    **{f"degenerate_{flag.replace('-', '_')}": f"share of a problem's texts flagged {flag}" for flag in FLAGS},
    "degenerate": "share of a problem's texts with any flag",
}


def group_means(table: AnswerTable, prompt_P: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Of every problem: the shares of its groups that are dead, all wrong and all right, and of its rollouts in live groups."""
    groups = count_groups(table)
    if len(groups.size_N):
        yield "dead_groups", problem_means(groups.dead_N, groups.prompt_N, prompt_P)
        yield "all_wrong", problem_means(groups.all_wrong_N, groups.prompt_N, prompt_P)
        yield "all_right", problem_means(groups.all_right_N, groups.prompt_N, prompt_P)
        live = np.repeat(1 - groups.dead_N, groups.size_N)
        yield "effective_samples", problem_means(live, np.repeat(groups.prompt_N, groups.size_N), prompt_P)


def truncated_means(table: AnswerTable, prompt_P: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Of every problem: the share of its rollouts cut at the length limit."""
    if table.has("finish_reason"):
        yield "truncated", problem_means(cut_off(table), table.prompt_R, prompt_P)


def cut_off(table: AnswerTable) -> np.ndarray:
    """1 where a rollout ended at its length limit, 0 where it ended otherwise, nan where that was not recorded."""
    ends = [*(text == "length" for text in table.names["finish_reason"].texts), np.nan]  # −1 is the last
    cut_R: np.ndarray = np.asarray(ends, dtype=float)[table.codes["finish_reason"]]
    return cut_R


def _per_problem(evidence: Evidence, window: Window) -> Iterator[tuple[str, np.ndarray]]:
    """(name, its mean in every problem of the window), for what can be measured there."""
    table, texts, prompt_P = window.table, evidence.texts, window.counts.prompt_P
    yield from group_means(table, prompt_P)
    yield from truncated_means(table, prompt_P)
    if table.has("n_tokens"):
        yield "length", problem_means(table.numbers["n_tokens"], table.prompt_R, prompt_P)
    if texts is not None and texts.known_R[window.rows].any():
        known = texts.known_R[window.rows]
        for flag in FLAGS:
            flagged = np.where(known, texts.flagged(flag)[window.rows], np.nan)
            yield f"degenerate_{flag.replace('-', '_')}", problem_means(flagged, table.prompt_R, prompt_P)
        anything = np.where(known, texts.flags_R[window.rows] > 0, np.nan)
        yield "degenerate", problem_means(anything, table.prompt_R, prompt_P)
