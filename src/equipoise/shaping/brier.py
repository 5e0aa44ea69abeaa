"""Rewards for an answer and the confidence stated with it (RLCR, https://arxiv.org/abs/2507.16806).

Axes: P groups, G completions each. The best q to state is the chance p of being right, and honesty is then worth
p − weight · p (1 − p), which grows with p for weights up to 1: to be right more often always pays. A log score in place of
the Brier term loses that: honesty is worth p + p ln p + (1−p) ln(1−p), which is 0 at p = 0 but −0.31 at p = 0.3, so that a
deliberately wrong answer with q = 0 beats an honest guess. Only bounded proper scores will do, and there is no log score here.

Rewards are nan where correctness is not known, and under padding. The paper takes advantages without division by the
group's standard deviation.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from equipoise.errors import UsageError, same_shape, unknown_name
from equipoise.shaping.inputs import verdicts

Malformed = Literal["worst", "unscored"]


def brier(
    correct_PG: np.ndarray | None,
    confidence_PG: np.ndarray | None,
    keep_PG: np.ndarray,
    *,
    weight: float,
    malformed: Malformed,
) -> np.ndarray:
    """R = y − weight · (q − y)², y = 1 for a right answer; the paper's weight is 1.

    A confidence that is missing (nan) or outside 0 to 1 is malformed: "worst" gives it −weight, the least that any stated
    confidence can earn; "unscored" gives nan, which leaves the completion out of its group.
    """
    if not 0 <= weight <= 1:
        raise UsageError(
            f"the Brier weight is {weight}: above 1 a deliberately wrong answer beats an honest guess, use 0 to 1"
        )
    if malformed not in ("worst", "unscored"):
        raise unknown_name("policy for malformed confidences", malformed, ("worst", "unscored"))
    correct_PG = verdicts(keep_PG, correct_PG=correct_PG)
    confidence_PG = _stated(confidence_PG, keep_PG)
    reward_PG = correct_PG - weight * (confidence_PG - correct_PG) ** 2
    otherwise = -weight if malformed == "worst" else np.nan
    return np.where(np.isnan(confidence_PG) & ~np.isnan(correct_PG), otherwise, reward_PG)


def brier_with_format(
    correct_PG: np.ndarray | None,
    confidence_PG: np.ndarray | None,
    keep_PG: np.ndarray,
    format_ok_PG: np.ndarray | None = None,
) -> np.ndarray:
    """The reward that the authors shipped: 0.5 format + 0.5 y + 0.5 (1 − (q − y)²), and 0 for a malformed output.

    For a well-formed output this is 1 + 0.5 R of `brier` with weight 1, at least 0.5: the paper's reward, affinely, plus an
    implicit bonus for the format. A confidence that is missing or outside 0 to 1 is malformed, and so is `format_ok_PG` 0;
    None: only the confidence is looked at.
    """
    correct_PG = verdicts(keep_PG, correct_PG=correct_PG)
    confidence_PG = _stated(confidence_PG, keep_PG)
    if format_ok_PG is not None:
        same_shape(format_ok_PG=format_ok_PG, keep_PG=keep_PG)
        confidence_PG = np.where(format_ok_PG == 1, confidence_PG, np.nan)
    reward_PG = 0.5 + 0.5 * correct_PG + 0.5 * (1 - (confidence_PG - correct_PG) ** 2)
    return np.where(np.isnan(confidence_PG) & ~np.isnan(correct_PG), 0.0, reward_PG)


def _stated(confidence_PG: np.ndarray | None, keep_PG: np.ndarray) -> np.ndarray:
    """The confidences, nan where one is malformed or missing."""
    if confidence_PG is None:
        raise UsageError("confidence_PG is needed and was not measured: the column confidence supplies it")
    same_shape(confidence_PG=confidence_PG, keep_PG=keep_PG)
    return np.where((confidence_PG >= 0) & (confidence_PG <= 1), confidence_PG, np.nan)
