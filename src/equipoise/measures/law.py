"""The law R = −a·exp(H) + b: reward bought with policy entropy (https://arxiv.org/abs/2505.22617). Axes: S steps.

Fitted by least squares along one run; b − a is the ceiling, the reward with all entropy spent. Any two curves that trend fit
each other, so a straight line in H and a saturating curve in steps stand beside it, and every fit carries a backtest: what the
first part of the run would have forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.base import Estimate
from equipoise.errors import UsageError, same_shape
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.intervals import Floats, Interval
from equipoise.measures.log_curves import log_curve
from equipoise.measures.prompts import conditions
from equipoise.measures.stretch import Curve, State, fit_stretch

SHARES = (0.2, 0.3, 0.4, 0.5, 0.6)  # of the run, for the backtest
FINAL = 0.1  # share of the run that is the truth of a forecast
MAX_ENTROPY = 20.0  # nats; above the logarithm of any vocabulary

Provenance = Mapping[str, Any] | str | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the first `share` of a run says of its end. Truth: mean reward of the last tenth of its steps."""

    share: float
    n: int  # rows it was fitted on
    state: State
    reason: str
    truth: float
    at_final_entropy: Interval | None  # the law at the entropies of the last tenth, which were not known then
    error: float | None  # at_final_entropy − truth
    ceiling: Interval | None  # the law at H → 0, an upper end rather than a forecast of the last tenth
    line: float | None  # forecast of the straight line in H, at the same entropies
    saturating: float | None  # forecast of the saturating curve in steps


@dataclass(frozen=True, slots=True)
class LawFit:
    """R = −a·exp(H) + b. With state "no fit" the numbers are kept for inspection, and `reason` says why not to use them."""

    state: State
    reason: str  # "" for a fit
    n: int  # rows used
    dropped: int  # rows with a missing number
    a: Interval | None
    b: Interval | None
    ceiling: Interval | None  # b − a
    r2: float | None
    r2_line: float | None  # R = m·H + c
    r2_saturating: float | None  # R = c − d·exp(−step/τ)
    autocorrelation: float | None  # of the residuals, from one row to the next
    backtest: tuple[Forecast, ...]


def fit_law(
    step_S: ArrayLike, entropy_S: ArrayLike, reward_S: ArrayLike, *, provenances: Sequence[Provenance] = ()
) -> LawFit:
    """Fit the law to one run, with its rivals and its backtest. Rows with a missing number are left out and counted.

    `provenances`: how the entropies were made, one entry per source. Entropies of two kinds (of the full softmax and of samples,
    at two temperatures, over two masks) do not lie on one curve, so more than one is refused.
    """
    _one_provenance(provenances)
    step, entropy, reward = (np.asarray(each, dtype=np.float64) for each in (step_S, entropy_S, reward_S))
    same_shape(step_S=step, entropy_S=entropy, reward_S=reward)
    known = np.isfinite(step) & np.isfinite(entropy) & np.isfinite(reward)
    order = np.argsort(step[known], kind="stable")
    curve = Curve(step[known][order], entropy[known][order], reward[known][order])
    _check_entropy(curve.entropy_S)
    fit = fit_stretch(curve)
    line, saturating = curve.rivals()
    return LawFit(
        state=fit.state,
        reason=fit.reason,
        n=len(curve),
        dropped=int((~known).sum()),
        a=fit.interval(-1, 0),
        b=fit.interval(0, 1),
        ceiling=fit.interval(1, 1),
        r2=None if fit.law is None else fit.law.r2,
        r2_line=None if line is None else line.r2,
        r2_saturating=None if saturating is None else saturating.r2,
        autocorrelation=None if fit.trend is None else fit.trend.autocorrelation,
        backtest=tuple(forecast(curve.step_S, curve.entropy_S, curve.reward_S, share=share) for share in SHARES)
        if len(curve)
        else (),
    )


def forecast(step_S: ArrayLike, entropy_S: ArrayLike, reward_S: ArrayLike, *, share: float) -> Forecast:
    """Fit the first `share` of a complete run and compare what it says of the end with what came. No number may be missing."""
    curve = Curve(*(np.asarray(each, dtype=np.float64) for each in (step_S, entropy_S, reward_S)))
    seen, last = int(share * len(curve)), max(1, round(FINAL * len(curve)))
    early, final = curve.rows(slice(None, seen)), curve.rows(slice(len(curve) - last, None))
    fit = fit_stretch(early)
    truth = float(final.reward_S.mean())
    at_final = fit.forecast(final, after=len(curve) - last - seen)
    line, saturating = early.rivals()
    return Forecast(
        share=share,
        n=seen,
        state=fit.state,
        reason=fit.reason,
        truth=truth,
        at_final_entropy=at_final,
        error=None if at_final is None else at_final.value - truth,
        ceiling=fit.interval(1, 1),
        line=None if line is None else float(line.predict(final.entropy_S).mean()),
        saturating=None if saturating is None else float(saturating.predict(final.step_S).mean()),
    )


def estimate_law(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """The law along the trainer's log or, where that has no entropy, along the rollouts of each condition."""
    try:
        return _along(evidence)
    except UsageError as error:  # a curve that is no entropy must not stop the other measures
        return [Estimate("law_ceiling", None, missing=str(error))]


def _along(evidence: Evidence) -> list[Estimate]:
    curves = law_curves(evidence)
    if not curves:
        missing = (
            "an entropy and a mean reward per step in the trainer's log, or token entropies and rewards of each step"
        )
        return [Estimate("law_ceiling", None, missing=missing)]
    estimates = []
    for curve in curves:
        fit = fit_law(curve.step_S, curve.entropy_S, curve.reward_S, provenances=[curve.provenance])
        estimates += _estimates(fit, dict(curve.at), _words(curve.provenance))
    return estimates


@dataclass(frozen=True, slots=True)
class LawCurve:
    """One run's entropy and reward by step, none missing; `at` says where they are from."""

    at: Mapping[str, Any]
    step_S: Floats
    entropy_S: Floats
    reward_S: Floats
    provenance: Provenance


def law_curves(evidence: Evidence) -> list[LawCurve]:
    """The trainer's log or, where that has no entropy, the rollouts of each condition; [] where neither has both numbers."""
    info = evidence.run.info.provenance
    step, entropy, reward = log_curve(evidence.metrics, "entropy", "reward")
    if len(step):
        return [LawCurve({"source": "log"}, step, entropy, reward, info.get("entropy"))]
    if evidence.tokens is None or not evidence.tokens.has("entropy_tokens"):
        return []
    return [
        LawCurve({"source": "rollouts"} | at, *_curve_of(evidence, rows), info.get("entropies"))
        for at, rows in conditions(evidence.answers)
    ]


def _curve_of(evidence: Evidence, rows: NDArray[Any]) -> tuple[Floats, Floats, Floats]:
    """Step, mean entropy per token and mean reward of each step in these rollouts."""
    assert evidence.tokens is not None
    held, numbers = evidence.tokens.rows, evidence.answers.numbers
    tokens, reward, step = held["entropy_tokens"][rows], numbers["reward"][rows], numbers["step"][rows]
    known = np.isfinite(step) & np.isfinite(reward) & (tokens > 0)
    steps, index = np.unique(step[known], return_inverse=True)
    count, of_tokens, of_entropy, of_reward = (
        np.bincount(index, weights=each[known]) for each in (np.ones(len(rows)), tokens, held["entropy"][rows], reward)
    )
    return steps, of_entropy / of_tokens, of_reward / count


def _estimates(fit: LawFit, at: dict[str, Any], made: str) -> list[Estimate]:
    """a, b and the ceiling of a fit, None with the reason where there is none; R² of the law and its rivals; the backtest."""
    estimates = []
    for name, interval in (("law_a", fit.a), ("law_b", fit.b), ("law_ceiling", fit.ceiling)):
        if fit.state == "fit" and interval is not None:
            found = interval.named(name, at)
            estimates.append(replace(found, how=f"{found.how}; entropy: {made}"))
        else:
            estimates.append(Estimate(name, None, n=fit.n, at=at, missing=f"a run that the law fits: {fit.reason}"))
    for model, r2 in (("law", fit.r2), ("line in H", fit.r2_line), ("saturating in steps", fit.r2_saturating)):
        how = "R² of least squares over rows; no interval: it only ranks the curves"
        estimates.append(Estimate("law_r2", r2, n=fit.n, at=at | {"model": model}, how=how))
    for past in fit.backtest:
        if past.at_final_entropy is not None:
            here = at | {"share": past.share, "truth": past.truth, "state": past.state}
            estimates.append(past.at_final_entropy.named("law_forecast", here))
    return estimates


def _one_provenance(provenances: Sequence[Provenance]) -> None:
    kinds: list[Provenance] = []
    for each in provenances:
        if each not in kinds:
            kinds.append(each)
    if len(kinds) > 1:
        seen = " and ".join(_words(each) for each in kinds)
        raise UsageError(
            f"one fit needs entropies made in one way, these were made in {len(kinds)}: {seen}; fit them apart"
        )


def _words(provenance: Provenance) -> str:
    if provenance is None:
        return "unknown"
    if isinstance(provenance, str):
        return provenance
    return ", ".join(f"{key} {value}" for key, value in provenance.items() if value not in (None, []))


def _check_entropy(entropy_S: Floats) -> None:
    if not len(entropy_S):
        return
    if float(np.median(entropy_S)) < 0:
        raise UsageError(
            f"the law needs the policy's entropy, found negative numbers (median {np.median(entropy_S):.3g}): turn the sign"
        )
    if float(entropy_S.max()) > MAX_ENTROPY:
        raise UsageError(
            f"the law needs the mean entropy per token in nats, found {entropy_S.max():.3g}: divide a sum by its tokens"
        )
