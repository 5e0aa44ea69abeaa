"""What entropy was exchanged for: the run in the plane of exp(H) and reward, the law's line there with its band, and the rivals.

The line is R = −a·exp(H) + b of `law`, read at exp(H) from 1 (all entropy spent, where it is the ceiling b − a) up to the run's
start. Its band has AR(1) errors: resampling blocks of rows, the usual bootstrap, covers 70 % (see `autocorrelated`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.errors import UsageError
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.law import FINAL, LawCurve, fit_law, law_curves
from equipoise.measures.step_buckets import step_buckets
from equipoise.measures.stretch import Curve, fit_stretch

GRID = 25  # places on the line


def estimate_exchange(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """exp(H) and reward at every step, the fitted line, the run's last reward and what the rivals forecast for it."""
    try:
        curves = law_curves(evidence)
        return [number for curve in curves for number in _of_curve(curve)] or [_missing()]
    except UsageError as error:  # as in `law`: a curve that is no entropy must not stop the other measures
        return [Estimate("exchange_reward", None, missing=str(error))]


def _missing() -> Estimate:
    missing = "an entropy and a mean reward per step in the trainer's log, or token entropies and rewards of each step"
    return Estimate("exchange_reward", None, missing=missing)


def _of_curve(found: LawCurve) -> Iterator[Estimate]:
    fit = fit_law(found.step_S, found.entropy_S, found.reward_S, provenances=[found.provenance])
    curve = Curve(found.step_S, found.entropy_S, found.reward_S)
    if not len(curve):
        return
    yield from _points(curve, found.at)
    if fit.state == "fit":
        yield from _line(curve, found.at)
    last = max(1, round(FINAL * len(curve)))
    how = f"mean reward over the last {FINAL:.0%} of the rows, which n counts; no interval: it is what came"
    yield Estimate("exchange_truth", float(curve.reward_S[-last:].mean()), n=last, at=dict(found.at), how=how)
    for past in fit.backtest:
        for model, value in (("line in H", past.line), ("saturating in steps", past.saturating)):
            if value is not None:
                at = {**found.at, "share": past.share, "model": model}
                words = (
                    "forecast of the run's last tenth by a rival of the law; no interval: it stands beside the law's"
                )
                yield Estimate("exchange_rival", value, n=past.n, at=at, how=words)


def _points(curve: Curve, at: Mapping[str, Any]) -> Iterator[Estimate]:
    how = "mean over the rows of the step or stretch, which n counts; no interval: rows follow each other"
    for step, rows in step_buckets(curve.step_S):
        here = {**at, "step": step}
        yield Estimate(
            "exchange_exp_entropy", float(curve.x_S[rows].mean()), n=len(rows), at=here, how=f"exp(H), {how}"
        )
        yield Estimate("exchange_reward", float(curve.reward_S[rows].mean()), n=len(rows), at=here, how=how)


def _line(curve: Curve, at: Mapping[str, Any]) -> Iterator[Estimate]:
    stretch = fit_stretch(curve)
    for x in np.linspace(1.0, float(curve.x_S.max()), GRID).tolist():
        found = stretch.interval(x, 1.0)
        if found is not None:
            yield found.named("exchange_fit", {**at, "exp_entropy": x})
