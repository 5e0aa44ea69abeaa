"""A run step by step: entropy, reward, and the settings that a controller moved. Axes: R rollouts, P problems.

Two sources stand side by side and are never mixed: the rollouts of the record, with intervals over problems, and the numbers that
the trainer logged. Steps are joined to stretches where a run has more than a hundred.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.entropy import MISSING as NO_ENTROPY
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.intervals import Interval, ratio_of_sums
from equipoise.measures.log_curves import logged_points, moved_settings
from equipoise.measures.prompts import conditions
from equipoise.measures.step_buckets import step_buckets
from equipoise.measures.sums import mean_of
from equipoise.measures.token_arms import problems_of, provenance

SPREAD = (0.05, 0.95)
SPREAD_PROMPTS = 20  # with fewer, the 5 % quantile is little more than the lowest of them


def estimate_course(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Entropy and reward at every step, with their spread over problems, and the settings in force."""
    log = evidence.metrics
    entropies = [*_entropies(evidence)]
    entropies += logged_points("entropy_at_step", log, "entropy", at={}, source=provenance(evidence, "entropy"))
    rewards = [*_rewards(evidence), *logged_points("reward_at_step", log, "reward", at={}, source="reward")]
    settings = [
        number
        for key in moved_settings(log)
        for number in logged_points("setting_at_step", log, key, at={"setting": key}, source="in force at that step")
    ]
    if not entropies:
        entropies.append(Estimate("entropy_at_step", None, missing=f"steps, with {NO_ENTROPY}"))
    if not rewards:
        missing = "steps and rewards (columns step and reward), or a mean reward in the trainer's log"
        rewards.append(Estimate("reward_at_step", None, missing=missing))
    return entropies + rewards + settings


def _entropies(evidence: Evidence) -> Iterator[Estimate]:
    if evidence.tokens is None or not evidence.tokens.has("entropy_tokens"):
        return
    held = evidence.tokens.rows
    how = f"mean over tokens, ΣH/Σn; {provenance(evidence, 'entropies')}"
    for at, rows in _stretches(evidence):
        rows = rows[held["entropy_tokens"][rows] > 0]
        problem_R, tokens_R = problems_of(evidence.answers, rows), held["entropy_tokens"][rows]
        sums = mean_of(held["entropy"][rows], tokens_R, problem_R)
        if sums is not None:
            found = sums.interval("log" if sums.value > 0 else "plain")
            yield _named("entropy_at_step", found, at, how)
            yield from _spread("entropy_at_step", held["entropy"][rows], tokens_R, problem_R, at)


def _rewards(evidence: Evidence) -> Iterator[Estimate]:
    reward_R = evidence.answers.numbers["reward"]
    known = reward_R[np.isfinite(reward_R)]
    if not len(known):
        return
    # A reward that was never outside 0 to 1 is taken as bounded: its interval then stays inside.
    bounds = (0.0, 1.0) if known.min() >= 0 and known.max() <= 1 else None
    for at, rows in _stretches(evidence):
        rows = rows[np.isfinite(reward_R[rows])]
        if len(rows):
            ones_R, problem_R = np.ones(len(rows)), problems_of(evidence.answers, rows)
            found = ratio_of_sums(reward_R[rows], ones_R, problem_R, bounds=bounds)
            yield _named("reward_at_step", found, at, "mean reward over rollouts")
            yield from _spread("reward_at_step", reward_R[rows], ones_R, problem_R, at)


def _stretches(evidence: Evidence) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """The rollouts of every condition and step."""
    for at, rows in conditions(evidence.answers):
        for step, inside in step_buckets(evidence.answers.numbers["step"][rows]):
            yield {**at, "source": "rollouts", "step": step}, rows[inside]


def _named(name: str, found: Interval, at: Mapping[str, Any], how: str) -> Estimate:
    return Estimate(name, found.value, found.low, found.high, found.n, dict(at), f"{how}; {found.how}")


def _spread(
    name: str, total_R: np.ndarray, count_R: np.ndarray, problem_R: np.ndarray, at: Mapping[str, Any]
) -> Iterator[Estimate]:
    """The 5 % and 95 % quantiles of the problems' own means."""
    problems, index = np.unique(problem_R, return_inverse=True)
    if len(problems) < SPREAD_PROMPTS:
        return
    mean_P = np.bincount(index, weights=total_R) / np.bincount(index, weights=count_R)
    for share, value in zip(SPREAD, np.quantile(mean_P, SPREAD).tolist(), strict=True):
        how = f"{share:.0%} quantile of the problems' means: their spread, no interval of the mean"
        yield Estimate(f"{name}_p{100 * share:g}", value, n=len(problems), at=dict(at), how=how)
