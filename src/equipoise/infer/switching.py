"""Will a trace that votes for an answer now still do so at its end? The switch model of MARS, and the margin that is safe from it.

https://arxiv.org/abs/2606.12935. Axes: R rows (a trace at a checkpoint), F features, N traces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

RIDGE = 0.01
GAMMAS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)

Said = str | None  # a trace's answer at a checkpoint; None: none yet


def safe_leader(
    said_N: Sequence[Said], switch_N: Sequence[float], *, gamma: float = 1.0, delta: float | None = None
) -> str | None:
    """The leader L where no challenger k, seen or not, can be expected to catch up; None: one could.

        V_L − V_k > Σ_j q_j c_j + √(2 n ln(|A| / δ)),   c_j = 2γ for a trace that votes L now, −1 for k, γ for any other

    q_j is the chance that trace j will change its answer, 0 where it is finished; n counts the others. Without δ there is no
    second term, as in the released code: expecting every switch to go to the challenger leaves room enough.
    """
    votes = Counter(said for said in said_N if said is not None)
    if not votes:
        return None
    leader, most = max(
        votes.items(), key=lambda item: item[1]
    )  # of equals the first seen, whose margin of 0 is never safe
    open_traces = sum(q > 0 for q in switch_N)
    spread = 0.0 if delta is None else sqrt(2 * open_traces * log(len(votes) / delta))
    for challenger in [None, *(answer for answer in votes if answer != leader)]:
        lost = sum(q * _cost(said, leader, challenger, gamma) for said, q in zip(said_N, switch_N, strict=True))
        margin = most - (votes[challenger] if challenger is not None else 0)
        if margin <= lost + spread:
            return None
    return leader


def _cost(said: Said, leader: str, challenger: str | None, gamma: float) -> float:
    if said == leader:
        return 2 * gamma
    return -1.0 if challenger is not None and said == challenger else gamma


def switch_features(said_C: Sequence[Said], confidence_C: Sequence[float | None], *, every: int) -> np.ndarray:
    """Of one trace, a row for each checkpoint: tokens so far, confidence, changes so far, checkpoints with this answer, rise of confidence.

    A confidence that was not measured is nan in all of them: `fit_switches` then leaves it out.
    """
    rows = []
    flips, streak = 0, 0
    sure = [np.nan if value is None else value for value in confidence_C]
    for c, said in enumerate(said_C):
        changed = c > 0 and said != said_C[c - 1]
        flips, streak = flips + changed, 1 if changed else streak + 1
        rows.append(((c + 1) * every, sure[c], flips, streak, sure[c] - sure[c - 1] if c else 0.0))
    return np.array(rows, dtype=float).reshape(-1, 5)


@dataclass(frozen=True, slots=True)
class SwitchModel:
    """P(switch) = σ(a · (b0 + b · z) + c), z the standardised features; a and c are Platt's scaling of the fit."""

    mean_F: np.ndarray
    spread_F: np.ndarray
    used_F: np.ndarray
    weights: np.ndarray  # intercept first
    platt: tuple[float, float]

    def chances(self, feature_RF: np.ndarray) -> np.ndarray:
        scale, shift = self.platt
        return np.asarray(expit(scale * (self._z(feature_RF) @ self.weights) + shift))

    def _z(self, feature_RF: np.ndarray) -> np.ndarray:
        return _design((feature_RF - self.mean_F)[:, self.used_F] / self.spread_F[self.used_F])


def fit_switches(feature_RF: np.ndarray, switched_R: np.ndarray) -> SwitchModel:
    """Logistic regression with a slight ridge, then Platt's two numbers, held near (1, 0) by the same ridge."""
    mean_F, spread_F = feature_RF.mean(axis=0), feature_RF.std(axis=0)
    used_F = np.isfinite(mean_F) & (spread_F > 1e-10)
    design = _design((feature_RF - mean_F)[:, used_F] / np.where(used_F, spread_F, 1.0)[used_F])
    weights = _fit_logistic(design, switched_R, towards=np.zeros(design.shape[1]))
    line = np.column_stack([design @ weights, np.ones(len(design))])
    scale, shift = _fit_logistic(line, switched_R, towards=np.array([1.0, 0.0]))
    return SwitchModel(mean_F, spread_F, used_F, weights, (float(scale), float(shift)))


def _design(z_RF: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(z_RF)), z_RF])


def _fit_logistic(design: np.ndarray, label_R: np.ndarray, *, towards: np.ndarray) -> np.ndarray:
    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        line, off = design @ point, point - towards
        value = float(np.logaddexp(0, line).sum() - label_R @ line + RIDGE * off @ off)
        return value, design.T @ (expit(line) - label_R) + 2 * RIDGE * off

    found = minimize(loss, towards, jac=True, method="L-BFGS-B", options={"ftol": 1e-14, "gtol": 1e-9})
    return np.asarray(found.x)


def choose_gamma(stop_with: Callable[[float], str | None], reference: str | None) -> float:
    """How adversely switches are taken to go: the least γ of a band down from 1 that leaves the warm-up's result as it is.

    `stop_with` gives the answer on which a γ would have stopped the warm-up traces; None, where it would not, counts as their
    vote at the end.
    """
    answers = [found if (found := stop_with(gamma)) is not None else reference for gamma in GAMMAS]
    kept = next((i for i, answer in enumerate(answers) if answer != answers[0]), len(GAMMAS))
    return GAMMAS[kept - 1]
