"""What a sweep over budgets says of spending the same tokens in one long completion or in several short ones.

Axes: P problems, B budgets. Votes are exact over all subsets of the drawn samples (`measures.majority`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.catalogue.settings import settings_for
from equipoise.errors import UsageError
from equipoise.measures.budget import MIN_BUDGETS, Picked, against_best, pick_budgets
from equipoise.measures.intervals import Interval, mean_of_prompts, paired_difference
from equipoise.measures.majk import maj_at_k_of
from equipoise.measures.subsets import common_size, default_ks
from equipoise.measures.sweeps import Sweep


@dataclass(frozen=True, slots=True)
class Setting:
    """`n` completions of at most `cap` tokens, or of so much thinking with `answer` tokens more, and a vote over them."""

    cap: int
    n: int
    answer: int | None  # None: the cap is on the whole completion
    native: bool = False  # the model or its server keeps the limit
    forced_by: tuple[
        tuple[str, str], ...
    ] = ()  # else: what ends the thinking, where it is not what the strategies take to

    @property
    def spec(self) -> str:
        """The strategy that does just this."""
        if self.answer is None:
            return f"parallel:n={self.n},budget={self.n * self.cap}"
        words = "".join(f"{name}={value}," for name, value in self.forced_by)
        rest = f"{words}answer={self.answer}{',native=true' if self.native else ''}"
        if self.n == 1:
            return f"cap:tokens={self.cap},{rest}"
        return f"parallel:n={self.n},budget={self.n * (self.cap + self.answer)},{rest}"

    @property
    def openai(self) -> dict[str, Any]:
        """The fields of a request; the vote over its n replies is the client's."""
        fields = settings_for("majority", "openai", n=self.n)
        if self.answer is None:
            return {"max_completion_tokens": self.cap} | fields
        return (
            {"max_completion_tokens": self.cap + self.answer} | settings_for("cap", "openai", tokens=self.cap) | fields
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """The most accurate setting for `spend` tokens a question, and what it brings on problems that did not choose it."""

    setting: Setting
    spend: float
    tokens: float  # that it really takes, on the mean
    accuracy: Estimate
    gain: Estimate  # over one completion of the largest budget
    most_samples: bool  # the vote has all samples that were drawn: more may be better still

    def to_dict(self) -> dict[str, Any]:
        return {
            "strategy": self.setting.spec,
            "openai": self.setting.openai,
            "cap": self.setting.cap,
            "n": self.setting.n,
            "answer_tokens": self.setting.answer,
            "spend": self.spend,
            "tokens": self.tokens,
            "accuracy": self.accuracy.to_dict(),
            "gain": self.gain.to_dict(),
            "most_samples": self.most_samples,
        }


def compare_arms(sweep: Sweep, at: Mapping[str, Any], *, seed: int) -> list[Estimate]:
    """At the tokens of every budget: one completion of it (sequential), or a vote over as many of the best budget (parallel).

    The best budget is found on the half of the problems that it is not tried on. Where it costs more than the tokens at hand, the
    parallel arm is the sequential one. A vote has no more samples than were drawn.
    """
    if len(sweep.budgets_B) < MIN_BUDGETS or len(sweep.prompt_P) < 2:
        return []
    picked = pick_budgets(sweep, seed=seed)
    return [number for b in range(len(sweep.budgets_B)) for number in _arms_at(sweep, picked, b, at)]


def _arms_at(sweep: Sweep, picked: Picked, b: int, at: Mapping[str, Any]) -> list[Estimate]:
    parallel_P = np.full(len(sweep.prompt_P), np.nan)
    samples = {}
    for best in np.unique(picked.best_P).tolist():
        mine_P = picked.best_P == best
        arm, samples[best] = _parallel(sweep, best, b)
        parallel_P[mine_P] = arm[mine_P]
    known_P = np.isfinite(parallel_P)
    chosen = int(np.argmax(sweep.accuracy_PB.mean(axis=0)))
    where = dict(at) | {"budget": float(sweep.budgets_B[b]), "tokens": float(sweep.tokens_B[b])}
    where |= {"samples": samples.get(chosen, _parallel(sweep, chosen, b)[1])}
    arm_at = mean_of_prompts(parallel_P[known_P], bounds=(0, 1)).named("parallel_accuracy", where)
    gain = against_best(picked, lambda best: _parallel(sweep, best, b)[0] - sweep.accuracy_PB[:, b])
    assert gain is not None  # a problem without enough samples at one budget has them at another
    return [arm_at, gain.named("parallel_minus_sequential", where)]


def _parallel(sweep: Sweep, best: int, b: int) -> tuple[np.ndarray, int]:
    """Per problem the vote over samples of budget `best` for the tokens of one of `b`, and how many those are."""
    n = min(int(sweep.tokens_B[b] // sweep.tokens_B[best]), common_size(sweep.counts_B[best].total_P))
    if best == b or n < 1:
        return sweep.accuracy_PB[:, b], 1
    return _vote(sweep, best, n), n


def advise(
    sweep: Sweep, at: Mapping[str, Any], *, spend: float | None, answer: int | None, native: bool, seed: int
) -> Advice | None:
    """The setting with the highest accuracy of those that take at most `spend` tokens on the mean (of equals the cheapest).

    `spend` None: what one completion of the largest budget takes. Its accuracy is cross-fitted: chosen on one half of the problems,
    measured on the other.
    """
    if not len(sweep.budgets_B) or len(sweep.prompt_P) < 2:
        return None
    most = float(sweep.tokens_B[-1]) if spend is None else float(spend)
    grid = _grid(sweep, most)
    if not grid:
        raise UsageError(
            f"{most:,.0f} tokens a question pay for no completion of any budget; the cheapest takes {sweep.tokens_B.min():,.0f}: spend more"
        )
    value_PS = np.stack([_vote(sweep, b, n) for b, n in grid], axis=1)
    whole_P = np.isfinite(value_PS).all(axis=1)
    value_PS = value_PS[whole_P]
    largest_P = sweep.accuracy_PB[whole_P, -1]
    b, n = grid[_best(value_PS)]
    fitted_P = _cross_fitted(value_PS, seed)
    return Advice(
        Setting(int(sweep.budgets_B[b]), n, answer, native),
        most,
        n * float(sweep.tokens_B[b]),
        _said(mean_of_prompts(fitted_P, bounds=(0, 1))).named("accuracy", at),
        _said(paired_difference(fitted_P, largest_P)).named(
            "gain", dict(at) | {"against": "one of the largest budget"}
        ),
        n == common_size(sweep.counts_B[b].total_P),
    )


def _grid(sweep: Sweep, spend: float) -> list[tuple[int, int]]:
    """(budget, samples) that are affordable, from the cheapest: powers of two, and as many as the tokens pay for."""
    grid = []
    for b, tokens in enumerate(sweep.tokens_B.tolist()):
        most = min(int(spend / tokens * (1 + 1e-9)), common_size(sweep.counts_B[b].total_P))
        grid += [(b, n) for n in sorted({*default_ks(sweep.counts_B[b].total_P), most}) if 1 <= n <= most]
    return sorted(grid, key=lambda pair: pair[1] * sweep.tokens_B[pair[0]])


def _vote(sweep: Sweep, b: int, n: int) -> np.ndarray:
    return sweep.accuracy_PB[:, b] if n == 1 else maj_at_k_of(sweep.counts_B[b], n)


def _best(value_PS: np.ndarray) -> int:
    mean_S = value_PS.mean(axis=0)
    return int(np.flatnonzero(mean_S >= mean_S.max() - 1e-12)[0])


def _cross_fitted(value_PS: np.ndarray, seed: int) -> np.ndarray:
    half_P = np.random.default_rng(seed).permutation(len(value_PS)) % 2
    best = [_best(value_PS[half_P != half]) for half in (0, 1)]
    return np.asarray(value_PS[np.arange(len(value_PS)), np.asarray(best)[half_P]])


def _said(found: Interval) -> Interval:
    return replace(found, how=f"setting chosen on one half of the problems, measured on the other; {found.how}")


def find_number(estimates: Sequence[Estimate], name: str, budget: float) -> Estimate | None:
    return next((number for number in estimates if number.name == name and number.at.get("budget") == budget), None)
