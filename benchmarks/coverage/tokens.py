"""Token measures: means over tokens, quantiles, forking tokens, drift and mismatch, their changes, and an entropy as logged.

A problem has a level of entropy, log-normal with a standard deviation of .5, its rollouts scatter around it by .2, and their
lengths by .3 and with the level. A quarter of the tokens are forks. In the late window half the problems are those of
the early one, forks have .7 and routine tokens .5 of their entropy. For the log, `prompts` are steps and `samples` is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy import signal

from benchmarks.coverage.case import Case, Shown
from equipoise.base import Estimate
from equipoise.measures.answers import AnswerCounter
from equipoise.measures.drift import estimate_drift
from equipoise.measures.entropy import estimate_entropy
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.forks import estimate_forks
from equipoise.measures.logged import logged_estimates
from equipoise.measures.mismatch import estimate_mismatch
from equipoise.measures.tokens import TokenCounter
from equipoise.rollouts.batch import Rollouts
from equipoise.rollouts.run import Run, RunInfo

LENGTH = 40
POPULATION = 150_000  # problems behind the truth, one rollout each
FORK, ROUTINE = 0.7, 0.5
WINDOWED = ("entropy", "entropy_p50", "entropy_p80", "entropy_p95", "entropy_p99", "surprisal", "fork_entropy", "routine_entropy", "fork_share", "fork_threshold", "kl_k1", "kl_k3", "kl_k3_sequence", "mismatch_abs", "mismatch_k3")  # fmt: skip
MOVED = ("entropy_change", "entropy_change_rel", "fork_entropy_change", "fork_entropy_change_rel", "routine_entropy_change_rel", "fork_share_change", "kl_k3_change", "mismatch_abs_change_rel")  # fmt: skip


def _window(
    rng: np.random.Generator, level_P: np.ndarray, samples: int, fork: float, routine: float
) -> dict[str, np.ndarray]:
    """Rollouts of some problems, tokens one after the other."""
    level_R = np.repeat(level_P, samples)
    spread = LENGTH * np.exp(rng.normal(0, 0.3, len(level_R))) * level_R**0.3
    length_R = np.clip(spread, 8, 4 * LENGTH).astype(np.int64)
    level_T = np.repeat(level_R * np.exp(rng.normal(0, 0.2, len(level_R))), length_R)
    n = len(level_T)
    forks = rng.random(n) < 0.25
    entropy = np.where(forks, fork * rng.gamma(4, 0.35, n), routine * rng.exponential(0.15, n)) * level_T
    logp = -rng.exponential(entropy + 1e-3)
    moved_T = np.minimum(level_T, 2.0)  # k3 is an exponential: without a cap it would have no mean
    return {
        "lengths": length_R,
        "entropies": entropy.astype(np.float16),
        "logprobs_rollout": logp.astype(np.float32),
        "logprobs_train": (logp + rng.normal(0, 0.05, n) * moved_T).astype(np.float32),
        "logprobs_ref": (logp - rng.normal(0.05, 0.3, n) * moved_T * (2 - fork)).astype(np.float32),
    }


def _run(rng: np.random.Generator, prompts: int, samples: int) -> Evidence:
    """Two steps that share half of their problems."""
    early_P = np.exp(rng.normal(0, 0.5, prompts))
    new = prompts - prompts // 2
    late_P = np.concatenate([early_P[new:], np.exp(rng.normal(0, 0.5, new))])
    windows = [_window(rng, early_P, samples, 1.0, 1.0), _window(rng, late_P, samples, FORK, ROUTINE)]
    problem = np.concatenate([np.arange(prompts), np.arange(new, prompts + new)])
    lengths = np.concatenate([window.pop("lengths") for window in windows])
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    arrays = {
        "step": pa.array(np.repeat([0, 1], prompts * samples)),
        "prompt_id": pa.array(np.repeat(problem, samples).astype(str).tolist()),
    }
    for name in windows[0]:
        arrays[name] = pa.ListArray.from_arrays(offsets, pa.array(np.concatenate([w[name] for w in windows])))
    batch = Rollouts.of_arrays(arrays, len(lengths))
    answers, tokens = AnswerCounter(read_texts=False), TokenCounter()
    answers.add(batch)
    tokens.add(batch)
    return Evidence(Run(Path("simulated"), RunInfo("simulated")), answers.table(), tokens.table())


def _shown(evidence: Evidence) -> dict[str, Estimate]:
    found: list[Estimate] = []
    for estimate in (estimate_entropy, estimate_forks, estimate_drift, estimate_mismatch):
        found += estimate(evidence, baseline=None, options=Options())
    late = {number.name: number for number in found if number.name in WINDOWED and number.at.get("window") == "late"}
    return late | {number.name: number for number in found if number.name in MOVED}


@cache
def _truth() -> dict[str, float | None]:
    return {name: number.value for name, number in _shown(_run(np.random.default_rng(0), POPULATION, 1)).items()}


def tokens(rng: np.random.Generator, prompts: int, samples: int) -> Iterator[Shown]:
    truth = _truth()
    for name, number in _shown(_run(rng, prompts, samples)).items():
        assert truth[name] is not None
        yield name, number.low, number.high, truth[name]  # type: ignore[misc]


def log(rng: np.random.Generator, steps: int, _: int, *, rho: float) -> Iterator[Shown]:
    """An entropy that falls from 1 to .3, logged with AR(1) noise of .05."""
    curve = 0.3 + 0.7 * np.exp(-4 * np.arange(steps) / steps)
    noise = signal.lfilter([1], [1, -rho], rng.normal(0, 0.05 * np.sqrt(1 - rho**2), steps + 200))[200:]
    width = round(0.2 * steps)
    late, early = curve[-width:].mean(), curve[:width].mean()
    truth = {"late": late, "early": early, "entropy_change": late - early, "entropy_change_rel": late / early - 1}
    for number in logged_estimates("entropy", [{"step": s, "entropy": h} for s, h in enumerate(curve + noise)]):
        name = number.at["window"] if number.name == "entropy" else number.name
        yield f"as logged: {name}", number.low, number.high, float(truth[name])


CASES = [
    Case("tokens", tokens),
    Case("log, ρ 0", partial(log, rho=0.0), ((50, 1), (100, 1), (200, 1))),
    Case("log, ρ .5", partial(log, rho=0.5), ((50, 1), (100, 1), (200, 1))),
    Case("stress: log, ρ .8", partial(log, rho=0.8), ((50, 1), (100, 1), (200, 1))),
]
